-- +goose Up

-- The same columns as in Postgres, where each is explained.
ALTER TABLE reviews ADD COLUMN asked_from INTEGER;
ALTER TABLE reviews ADD COLUMN asked_at INTEGER;

-- +goose Down
ALTER TABLE reviews DROP COLUMN asked_at;
ALTER TABLE reviews DROP COLUMN asked_from;
