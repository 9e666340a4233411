-- Claims due tasks by their ids, or if `waiting` those that wait for a limit or were released by it, also if they run in
-- batches. Rows that are not PENDING, not due yet, or locked by other transactions are skipped. A task that waits has been
-- due since its ready_at.
-- MATERIALIZED, because the rows must be locked in primary-key order before any of them is written.
-- synchronous_commit is off for claims. If the server loses a claim in a crash, the task is claimed again, and the
-- message of the lost claim finds no QUEUED row. WAL is flushed in order, so a start is never durable without its
-- claim. Claims with overlap keys are an exception: these keys are checked after the COMMIT, and the message of a
-- lost claim must not start a task that is about to be refused.
WITH due AS MATERIALIZED (
  SELECT id, waiting_for_limit, overlap_key
    FROM durable_tasks_task
   WHERE id = ANY (%(ids)s::uuid[]) AND status || '' = 'PENDING'
     AND CASE WHEN %(waiting)s THEN waiting_for_limit IS NOT NULL AND (due_at >= %(never)s OR due_at <= clock_timestamp())
              ELSE NOT in_batch AND due_at <= clock_timestamp() END
   ORDER BY id
     FOR NO KEY UPDATE SKIP LOCKED)
UPDATE durable_tasks_task AS task
   SET status = 'QUEUED', waiting_for_limit = NULL, epoch = task.epoch + 1, publish_count = task.publish_count + 1, node = %(node)s,
       ready_at = CASE WHEN task.due_at >= %(never)s THEN least(task.ready_at, clock_timestamp()) ELSE task.due_at END,
       queued_at = clock_timestamp(), due_at = clock_timestamp() + %(wait)s * interval '1 second', updated_at = clock_timestamp()
  FROM due,
       (SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM due WHERE overlap_key IS NOT NULL)
                    THEN set_config('synchronous_commit', 'off', true) END) AS unflushed
 WHERE task.id = due.id AND task.status || '' = 'PENDING'
RETURNING task.id, task.epoch, task.publish_count, task.name, task.queue, task.priority, task.options,
          task.idempotency_key, task.run_at, task.expires_at, task.overlap_key, due.waiting_for_limit,
          task.tenant_id, task.limit_key, task.weight, task.ready_at
