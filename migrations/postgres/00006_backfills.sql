-- +goose Up

-- Lists of addresses. Every write that belongs to one locks its row first, and names the lease's token.
CREATE TABLE IF NOT EXISTS backfills (
    number        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            uuid        NOT NULL UNIQUE,
    source        bytea       UNIQUE CHECK (octet_length(source) = 16), -- who brings the same again goes on with it
    terms         text        NOT NULL, -- how the input is read
    client        text        NOT NULL,
    flow          text        NOT NULL,
    state         text        NOT NULL CHECK (state IN
                              ('loading', 'merging', 'planning', 'planned', 'running', 'stopped', 'cancelling', 'cancelled', 'done')),
    dry           boolean     NOT NULL, -- ends as planned
    rate          double precision NOT NULL DEFAULT 0 CHECK (rate >= 0), -- checks a second; 0: no bound of its own
    max_credits   bigint      CHECK (max_credits >= 0),
    digest        bytea,      -- keyed, of the input up to loaded_line
    loaded_line   bigint      NOT NULL DEFAULT 0,
    merged_line   bigint      NOT NULL DEFAULT 0,
    planned_line  bigint      NOT NULL DEFAULT 0,
    fed_line      bigint      NOT NULL DEFAULT 0,
    fed_all       boolean     NOT NULL DEFAULT false,
    rows_n        bigint      NOT NULL DEFAULT 0,
    unreadable_n  bigint      NOT NULL DEFAULT 0, -- rows without an address
    refused_n     bigint      NOT NULL DEFAULT 0, -- rows whose text can't be an address
    distinct_n    bigint      NOT NULL DEFAULT 0,
    asked_n       bigint      NOT NULL DEFAULT 0, -- items in state 1
    waiting_n     bigint      NOT NULL DEFAULT 0, -- items in state 2
    own_n         bigint      NOT NULL DEFAULT 0, -- of both, those whose review this backfill opened
    valid_n       bigint      NOT NULL DEFAULT 0,
    invalid_n     bigint      NOT NULL DEFAULT 0,
    risky_n       bigint      NOT NULL DEFAULT 0,
    unresolved_n  bigint      NOT NULL DEFAULT 0,
    known_n       bigint      NOT NULL DEFAULT 0, -- answered without asking
    credits       bigint      NOT NULL DEFAULT 0,
    plan_known    bigint      NOT NULL DEFAULT 0,
    plan_open     bigint      NOT NULL DEFAULT 0,
    plan_ask      bigint      NOT NULL DEFAULT 0,
    bad           jsonb       NOT NULL DEFAULT '[]', -- the first unreadable rows: [line, fault]
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    loaded_at     timestamptz,
    began_at      timestamptz, -- the feeding
    finished_at   timestamptz,
    keep_until    timestamptz,
    lease_token   bigint      NOT NULL DEFAULT 0, -- of review_lease; 0 is no lease
    lease_until   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS backfills_work ON backfills (lease_until)
    WHERE state IN ('merging', 'planning', 'running', 'cancelling');
CREATE INDEX IF NOT EXISTS backfills_keep_until ON backfills (keep_until) WHERE keep_until IS NOT NULL;

-- The input in its order. It has the one index: a second would halve the intake. No foreign key, for the same reason.
CREATE TABLE IF NOT EXISTS backfill_rows (
    backfill    bigint NOT NULL,
    line        bigint NOT NULL,
    fingerprint bytea,  -- NULL: there is no address, and fault says why
    fault       text,
    input       bytea,  -- sealed; the row is the seal's context. NULL once it is erased
    PRIMARY KEY (backfill, line)
);

-- Distinct addresses. 0 new, 1 asked: its review is open, 2 waits: that review waits on the mailbox's side, 3 done.
CREATE TABLE IF NOT EXISTS backfill_items (
    fingerprint bytea    NOT NULL CHECK (octet_length(fingerprint) = 16),
    backfill    bigint   NOT NULL,
    first_line  bigint   NOT NULL,
    state       smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    own         boolean  NOT NULL DEFAULT false, -- the review was opened for it
    billed      integer  NOT NULL DEFAULT 0,     -- by the review's trail
    review_id   uuid,
    look_at     timestamptz, -- in state 2
    status      text,
    reason      text,
    decision    text,
    suggestion  bytea,       -- sealed
    PRIMARY KEY (fingerprint, backfill),
    CHECK ((state IN (1, 2)) = (review_id IS NOT NULL)),
    CHECK ((state = 3) = (status IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS backfill_items_asked ON backfill_items (backfill) WHERE state = 1;
CREATE INDEX IF NOT EXISTS backfill_items_waiting ON backfill_items (backfill, look_at) WHERE state = 2;
CREATE INDEX IF NOT EXISTS backfill_items_review ON backfill_items (review_id) WHERE state IN (1, 2);

-- Lines of an address after its first.
CREATE TABLE IF NOT EXISTS backfill_repeats (
    fingerprint bytea  NOT NULL,
    backfill    bigint NOT NULL,
    line        bigint NOT NULL,
    PRIMARY KEY (fingerprint, backfill, line)
);

-- +goose Down
DROP TABLE IF EXISTS backfill_repeats;
DROP TABLE IF EXISTS backfill_items;
DROP TABLE IF EXISTS backfill_rows;
DROP TABLE IF EXISTS backfills;
