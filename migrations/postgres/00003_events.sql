-- +goose Up

-- Events that ask for a new check of an address. Columns of the review that they open or join, so that it is committed
-- and erased with them. An older program leaves both empty.
ALTER TABLE reviews
    ADD COLUMN IF NOT EXISTS asked_from timestamptz, -- the first event of the present burst
    ADD COLUMN IF NOT EXISTS asked_at   timestamptz; -- a verdict that began before does not end the review; ahead while events are expected

-- +goose Down
ALTER TABLE reviews DROP COLUMN asked_at, DROP COLUMN asked_from;
