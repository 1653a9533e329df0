-- +goose Up

-- The same tables as in Postgres, where each is explained.
CREATE TABLE backfills (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE CHECK (length(id) = 36),
    source        BLOB    UNIQUE CHECK (length(source) = 16),
    terms         TEXT    NOT NULL,
    client        TEXT    NOT NULL,
    flow          TEXT    NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN
                          ('loading', 'merging', 'planning', 'planned', 'running', 'stopped', 'cancelling', 'cancelled', 'done')),
    dry           INTEGER NOT NULL,
    rate          REAL    NOT NULL DEFAULT 0 CHECK (rate >= 0),
    max_credits   INTEGER CHECK (max_credits >= 0),
    digest        BLOB,
    loaded_line   INTEGER NOT NULL DEFAULT 0,
    merged_line   INTEGER NOT NULL DEFAULT 0,
    planned_line  INTEGER NOT NULL DEFAULT 0,
    fed_line      INTEGER NOT NULL DEFAULT 0,
    fed_all       INTEGER NOT NULL DEFAULT 0,
    rows_n        INTEGER NOT NULL DEFAULT 0,
    unreadable_n  INTEGER NOT NULL DEFAULT 0,
    refused_n     INTEGER NOT NULL DEFAULT 0,
    distinct_n    INTEGER NOT NULL DEFAULT 0,
    asked_n       INTEGER NOT NULL DEFAULT 0,
    waiting_n     INTEGER NOT NULL DEFAULT 0,
    own_n         INTEGER NOT NULL DEFAULT 0,
    valid_n       INTEGER NOT NULL DEFAULT 0,
    invalid_n     INTEGER NOT NULL DEFAULT 0,
    risky_n       INTEGER NOT NULL DEFAULT 0,
    unresolved_n  INTEGER NOT NULL DEFAULT 0,
    known_n       INTEGER NOT NULL DEFAULT 0,
    credits       INTEGER NOT NULL DEFAULT 0,
    plan_known    INTEGER NOT NULL DEFAULT 0,
    plan_open     INTEGER NOT NULL DEFAULT 0,
    plan_ask      INTEGER NOT NULL DEFAULT 0,
    bad           TEXT    NOT NULL DEFAULT '[]',
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    loaded_at     INTEGER,
    began_at      INTEGER,
    finished_at   INTEGER,
    keep_until    INTEGER,
    lease_token   INTEGER NOT NULL DEFAULT 0,
    lease_until   INTEGER NOT NULL
) STRICT;
CREATE INDEX backfills_work ON backfills (lease_until) WHERE state IN ('merging', 'planning', 'running', 'cancelling');
CREATE INDEX backfills_keep_until ON backfills (keep_until) WHERE keep_until IS NOT NULL;

CREATE TABLE backfill_rows (
    backfill    INTEGER NOT NULL,
    line        INTEGER NOT NULL,
    fingerprint BLOB,
    fault       TEXT,
    input       BLOB,
    PRIMARY KEY (backfill, line)
) STRICT, WITHOUT ROWID;

CREATE TABLE backfill_items (
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 16),
    backfill    INTEGER NOT NULL,
    first_line  INTEGER NOT NULL,
    state       INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    own         INTEGER NOT NULL DEFAULT 0,
    billed      INTEGER NOT NULL DEFAULT 0,
    review_id   TEXT,
    look_at     INTEGER,
    status      TEXT,
    reason      TEXT,
    decision    TEXT,
    suggestion  BLOB,
    PRIMARY KEY (fingerprint, backfill),
    CHECK ((state IN (1, 2)) = (review_id IS NOT NULL)),
    CHECK ((state = 3) = (status IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX backfill_items_asked ON backfill_items (backfill) WHERE state = 1;
CREATE INDEX backfill_items_waiting ON backfill_items (backfill, look_at) WHERE state = 2;
CREATE INDEX backfill_items_review ON backfill_items (review_id) WHERE state IN (1, 2);

CREATE TABLE backfill_repeats (
    fingerprint BLOB    NOT NULL,
    backfill    INTEGER NOT NULL,
    line        INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, backfill, line)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE backfill_repeats;
DROP TABLE backfill_items;
DROP TABLE backfill_rows;
DROP TABLE backfills;
