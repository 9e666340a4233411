-- Whether an entry must be kept: by its age, or because ledger_from of its schedule does not cover it yet, so that the
-- fire time could be created again.
SELECT EXISTS (
  SELECT 1
    FROM {name} AS entry
    LEFT JOIN durable_tasks_recurring_task AS schedule ON schedule.id = entry.recurring_task_id
   WHERE entry.created_at >= %(cutoff)s
      OR schedule.id IS NOT NULL
         AND (schedule.ledger_from IS NULL
              OR schedule.ledger_from < COALESCE(entry.last_fire_time, entry.fire_time)))
