-- +goose NO TRANSACTION
-- An index is built while replicas go on writing, which no transaction can do. Each step may be run again.

-- +goose Up

-- What a request with an Idempotency-Key was answered. No address in it: what holds one is filled in from the request.
CREATE TABLE IF NOT EXISTS idempotent_answers (
    key         bytea       PRIMARY KEY CHECK (octet_length(key) = 16),  -- keyed hash of the client and its key
    request     bytea       NOT NULL CHECK (octet_length(request) = 16), -- keyed hash of what was asked
    fingerprint bytea       CHECK (octet_length(fingerprint) = 16),      -- for erasure; NULL: no address in it
    token       bigint      NOT NULL CHECK (token > 0),                  -- of the request that holds the key or held it
    answer      bytea       CHECK (octet_length(answer) BETWEEN 1 AND 8192), -- NULL while that request is in work
    until       timestamptz NOT NULL                                     -- its lease's end; once answered, the answer's
);
-- For the sweep.
CREATE INDEX IF NOT EXISTS idempotent_answers_until ON idempotent_answers (until);
-- For erasure.
CREATE INDEX IF NOT EXISTS idempotent_answers_fingerprint ON idempotent_answers (fingerprint)
    WHERE fingerprint IS NOT NULL;

-- Addresses that were erased a moment ago: what began before must not bring them back. Ids are UUIDv7, so they are in
-- the order in which checks began.
CREATE TABLE IF NOT EXISTS erasures (
    fingerprint bytea       PRIMARY KEY CHECK (octet_length(fingerprint) = 16),
    up_to       uuid        NOT NULL, -- checks up to this id are erased
    forget_at   timestamptz NOT NULL
);

-- Ended reviews by address, for erasure; open ones have their own. A half-built one is left by a run that was cut off.
DROP INDEX CONCURRENTLY IF EXISTS reviews_ended_fingerprint;
CREATE INDEX CONCURRENTLY reviews_ended_fingerprint ON reviews (fingerprint) WHERE state <> 'open';

-- +goose Down
DROP INDEX IF EXISTS reviews_ended_fingerprint;
DROP TABLE IF EXISTS erasures;
DROP TABLE IF EXISTS idempotent_answers;
