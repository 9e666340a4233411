-- ledger_from of at most `limit` schedules becomes the newest fire time of the partition. Locked in primary-key order;
-- schedules that a tick has locked are changed by a later call.
WITH newest AS MATERIALIZED (
  SELECT recurring_task_id AS id, max(COALESCE(last_fire_time, fire_time)) AS fire_time FROM {name} GROUP BY 1),
locked AS MATERIALIZED (
  SELECT schedule.id
    FROM durable_tasks_recurring_task AS schedule JOIN newest ON newest.id = schedule.id
   WHERE schedule.ledger_from IS NULL OR schedule.ledger_from < newest.fire_time
   ORDER BY schedule.id
   LIMIT %(limit)s
     FOR NO KEY UPDATE OF schedule SKIP LOCKED)
UPDATE durable_tasks_recurring_task AS schedule
   SET ledger_from = greatest(schedule.ledger_from, newest.fire_time)
  FROM locked, newest
 WHERE schedule.id = locked.id AND newest.id = schedule.id
