-- The estimated number of entries, the size in bytes with indexes, and the exact number of entries that the conversion
-- moves to the default partition: ranges, manual runs, and fire times after the first partition.
SELECT greatest(reltuples, 0)::bigint, pg_total_relation_size(oid),
       (SELECT count(*) FROM durable_tasks_occurrence WHERE unique_fire_time IS NULL OR unique_fire_time >= %(bound)s)
  FROM pg_class
 WHERE oid = to_regclass('durable_tasks_occurrence')
