-- Whether the entry with the largest id is older than the retention. Reads one entry by the primary key, so that a
-- partition with young entries, for example after a backfill, is not read and locked by each call. An older entry can
-- have a larger id than a younger one, so cover_ledger_partition looks at all of them.
SELECT created_at < %(cutoff)s FROM {name} ORDER BY id DESC LIMIT 1
