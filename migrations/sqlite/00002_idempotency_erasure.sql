-- +goose Up

-- The same tables as in Postgres, where each is explained.
CREATE TABLE idempotent_answers (
    key         BLOB    PRIMARY KEY CHECK (length(key) = 16),
    request     BLOB    NOT NULL CHECK (length(request) = 16),
    fingerprint BLOB    CHECK (length(fingerprint) = 16),
    token       INTEGER NOT NULL CHECK (token > 0),
    answer      BLOB    CHECK (length(answer) BETWEEN 1 AND 8192),
    until       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotent_answers_until ON idempotent_answers (until);
CREATE INDEX idempotent_answers_fingerprint ON idempotent_answers (fingerprint) WHERE fingerprint IS NOT NULL;

CREATE TABLE erasures (
    fingerprint BLOB    PRIMARY KEY CHECK (length(fingerprint) = 16),
    up_to       TEXT    NOT NULL CHECK (length(up_to) = 36),
    forget_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX reviews_ended_fingerprint ON reviews (fingerprint) WHERE state <> 'open';

-- +goose Down
DROP INDEX reviews_ended_fingerprint;
DROP TABLE erasures;
DROP TABLE idempotent_answers;
