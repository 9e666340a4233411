-- Whether every entry of the partition is older than the retention. An entry can be younger than its fire time, for
-- example after a backfill.
SELECT NOT EXISTS (SELECT 1 FROM {name} WHERE created_at >= %(cutoff)s)
