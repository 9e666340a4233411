-- ledger_from of at most `limit` schedules becomes the newest fire time of the partition, unless an entry is younger
-- than the retention. The caller has locked the partition, so what this one read found is true until the drop.
-- Schedules are locked in primary-key order. Those that a tick has locked are changed by a later call.
-- Returns whether an entry is young, how many schedules the partition is not covered by, and how many were changed.
WITH newest AS MATERIALIZED (
  SELECT recurring_task_id AS id, max(COALESCE(last_fire_time, fire_time)) AS fire_time,
         bool_or(created_at >= %(cutoff)s) AS is_young
    FROM {name} GROUP BY 1),
uncovered AS MATERIALIZED (
  SELECT schedule.id, newest.fire_time
    FROM newest JOIN durable_tasks_recurring_task AS schedule ON schedule.id = newest.id
   WHERE schedule.ledger_from IS NULL OR schedule.ledger_from < newest.fire_time),
locked AS MATERIALIZED (
  SELECT schedule.id, uncovered.fire_time
    FROM durable_tasks_recurring_task AS schedule JOIN uncovered ON uncovered.id = schedule.id
   WHERE (schedule.ledger_from IS NULL OR schedule.ledger_from < uncovered.fire_time)
     AND NOT EXISTS (SELECT 1 FROM newest WHERE is_young)
   ORDER BY schedule.id
   LIMIT %(limit)s
     FOR NO KEY UPDATE OF schedule SKIP LOCKED),
raised AS (
  UPDATE durable_tasks_recurring_task AS schedule
     SET ledger_from = greatest(schedule.ledger_from, locked.fire_time)
    FROM locked
   WHERE schedule.id = locked.id
  RETURNING 1)
SELECT EXISTS (SELECT 1 FROM newest WHERE is_young), (SELECT count(*) FROM uncovered), (SELECT count(*) FROM raised)
