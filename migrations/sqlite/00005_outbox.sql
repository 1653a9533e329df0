-- +goose Up

-- The same table as in Postgres, where it is explained.
CREATE TABLE outbox (
    id          TEXT    PRIMARY KEY CHECK (length(id) = 36),
    review_id   TEXT    NOT NULL REFERENCES reviews (id) ON DELETE CASCADE,
    callback    TEXT    NOT NULL,
    event       TEXT    NOT NULL CHECK (event IN ('review.settled', 'review.dead')),
    client      TEXT    NOT NULL,
    flow        TEXT    NOT NULL,
    recorded_at INTEGER NOT NULL,
    due_at      INTEGER NOT NULL,
    lease_token INTEGER NOT NULL DEFAULT 0,
    attempts    INTEGER NOT NULL DEFAULT 0,
    why         TEXT    NOT NULL DEFAULT '',
    given_up_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_due ON outbox (callback, due_at) WHERE given_up_at IS NULL;
CREATE INDEX outbox_ended_at ON outbox (coalesce(given_up_at, recorded_at));
CREATE INDEX outbox_review ON outbox (review_id);

-- +goose Down
DROP TABLE outbox;
