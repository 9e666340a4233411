-- ATTACH reads the default partition under its lock. Entries that were written there because this partition was missing
-- are moved first. The lock on the parent only excludes other changes of partitions.
SET LOCAL lock_timeout = '500ms';
LOCK TABLE durable_tasks_occurrence IN SHARE UPDATE EXCLUSIVE MODE;
LOCK TABLE durable_tasks_occurrence_default IN ACCESS EXCLUSIVE MODE;
CREATE TABLE {name} (LIKE durable_tasks_occurrence_default INCLUDING ALL);
WITH moved AS (
  DELETE FROM durable_tasks_occurrence_default
   WHERE unique_fire_time >= {first} AND unique_fire_time < {end} RETURNING *)
INSERT INTO {name} SELECT * FROM moved;
ALTER TABLE durable_tasks_occurrence ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({end});
