-- +goose Up

-- The same tables as in Postgres, where each is explained. Times are microseconds since 1970, written by the
-- program: no statement asks SQLite for the time. Ids are canonical text.
CREATE TABLE reviews (
    id          TEXT    PRIMARY KEY CHECK (length(id) = 36),
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 16),
    domain_key  INTEGER NOT NULL,
    address     BLOB,
    state       TEXT    NOT NULL CHECK (state IN ('open', 'settled', 'dead')),
    reason      TEXT    NOT NULL,
    cause       TEXT    NOT NULL CHECK (cause IN ('upstream', 'mailbox', 'unusable')),
    trail       TEXT    NOT NULL DEFAULT '[]' CHECK (json_type(trail) = 'array'),
    verdict     TEXT    CHECK (verdict IS NULL OR json_valid(verdict)),
    recorded_at INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    CHECK ((state = 'open') = (ended_at IS NULL)),
    CHECK ((state = 'settled') = (verdict IS NOT NULL)),
    CHECK (state = 'settled' OR address IS NOT NULL)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX reviews_open_fingerprint ON reviews (fingerprint) WHERE state = 'open';
CREATE INDEX reviews_ended_at ON reviews (state, ended_at) WHERE state <> 'open';

CREATE TABLE review_watchers (
    review_id TEXT NOT NULL REFERENCES reviews (id) ON DELETE CASCADE,
    client    TEXT NOT NULL,
    flow      TEXT NOT NULL,
    callback  TEXT NOT NULL,
    PRIMARY KEY (review_id, client, flow, callback)
) STRICT, WITHOUT ROWID;

-- The last token given out, in one row.
CREATE TABLE review_lease (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL
) STRICT;
INSERT INTO review_lease (one, last) VALUES (1, 0);

CREATE TABLE review_queue (
    review_id   TEXT    PRIMARY KEY REFERENCES reviews (id),
    domain_key  INTEGER NOT NULL CHECK (domain_key >= 0),
    due_at      INTEGER NOT NULL,
    lease_token INTEGER NOT NULL DEFAULT 0 CHECK (lease_token >= 0),
    outage_ms   INTEGER NOT NULL DEFAULT 0,
    attempts    INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    snoozes     INTEGER NOT NULL DEFAULT 0 CHECK (snoozes >= 0),
    unusable    INTEGER NOT NULL DEFAULT 0 CHECK (unusable >= 0),
    claims      INTEGER NOT NULL DEFAULT 0 CHECK (claims >= 0),
    priority    INTEGER NOT NULL CHECK (priority IN (0, 10, 20)),
    cause       TEXT    NOT NULL CHECK (cause IN ('upstream', 'mailbox', 'unusable'))
) STRICT, WITHOUT ROWID;

CREATE INDEX review_queue_domain ON review_queue (domain_key, priority, due_at, review_id);
CREATE INDEX review_queue_due ON review_queue (priority, due_at);

CREATE TABLE verdicts (
    id          TEXT    PRIMARY KEY CHECK (length(id) = 36),
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 16),
    status      TEXT    NOT NULL CHECK (status IN ('valid', 'invalid', 'risky', 'unresolved')),
    reason      TEXT    NOT NULL,
    body        TEXT    NOT NULL CHECK (json_valid(body)),
    checked_at  INTEGER NOT NULL,
    hard_until  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX verdicts_fingerprint ON verdicts (fingerprint, checked_at DESC);
CREATE INDEX verdicts_hard_until ON verdicts (hard_until);

-- Something known, sealed with the secret that addresses are sealed with: a program that can't open it has another
-- secret, and is told so before it takes the rows for damaged.
CREATE TABLE sealed_proof (
    one    INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    sealed BLOB NOT NULL
) STRICT;

-- +goose Down
DROP TABLE sealed_proof;
DROP TABLE verdicts;
DROP TABLE review_queue;
DROP TABLE review_lease;
DROP TABLE review_watchers;
DROP TABLE reviews;
