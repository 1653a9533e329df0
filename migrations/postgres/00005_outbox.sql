-- +goose NO TRANSACTION
-- An index is built while replicas go on writing, which no transaction can do. Each step may be run again.

-- +goose Up

-- What callbacks have still to be told, written in the transaction that ends a review. Delivered messages are deleted;
-- those that were given up stay for a week, to be looked at. No address in it: the body is made from the review.
CREATE TABLE IF NOT EXISTS outbox (
    id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    review_id   uuid        NOT NULL REFERENCES reviews ON DELETE CASCADE,
    callback    text        NOT NULL,
    event       text        NOT NULL CHECK (event IN ('review.settled', 'review.dead')),
    client      text        NOT NULL,
    flow        text        NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    due_at      timestamptz NOT NULL DEFAULT now(), -- a lease moves it forward
    lease_token bigint      NOT NULL DEFAULT 0,     -- of review_lease; 0 is no lease
    attempts    integer     NOT NULL DEFAULT 0,
    why         text        NOT NULL DEFAULT '',    -- the last failure, in our words
    given_up_at timestamptz
);
-- Each callback has a queue of its own: one that does not answer must not keep the others waiting.
CREATE INDEX IF NOT EXISTS outbox_due ON outbox (callback, due_at) WHERE given_up_at IS NULL;
-- For the sweep.
CREATE INDEX IF NOT EXISTS outbox_ended_at ON outbox ((coalesce(given_up_at, recorded_at)));
CREATE INDEX IF NOT EXISTS outbox_review ON outbox (review_id); -- for the cascade

-- Most who wait want no callback: finding that out is to cost the end of a review next to nothing. A half-built one is
-- left by a run that was cut off.
DROP INDEX CONCURRENTLY IF EXISTS review_watchers_callback;
CREATE INDEX CONCURRENTLY review_watchers_callback ON review_watchers (review_id) WHERE callback <> '';

-- +goose Down
DROP INDEX IF EXISTS review_watchers_callback;
DROP TABLE IF EXISTS outbox;
