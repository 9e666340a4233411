-- Claims due tasks by their ids. Rows that are not PENDING, not due yet, or locked by other transactions are skipped.
-- MATERIALIZED, because the rows must be locked in primary-key order before any of them is written.
-- synchronous_commit is off for claims. If the server loses a claim in a crash, the task is claimed again, and the
-- message of the lost claim finds no QUEUED row. WAL is flushed in order, so a start is never durable without its
-- claim. Claims with overlap keys are an exception: these keys are checked after the COMMIT, and the message of a
-- lost claim must not start a task that is about to be refused.
WITH due AS MATERIALIZED (
  SELECT id, waiting_for_limit, overlap_key
    FROM durable_tasks_task
   WHERE id = ANY (%(ids)s::uuid[]) AND status || '' = 'PENDING' AND NOT in_batch AND due_at <= clock_timestamp()
   ORDER BY id
     FOR NO KEY UPDATE SKIP LOCKED)
UPDATE durable_tasks_task AS task
   SET status = 'QUEUED', waiting_for_limit = NULL, epoch = task.epoch + 1, publish_count = task.publish_count + 1, node = %(node)s,
       ready_at = task.due_at, queued_at = clock_timestamp(), due_at = clock_timestamp() + %(wait)s * interval '1 second', updated_at = clock_timestamp()
  FROM due,
       (SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM due WHERE overlap_key IS NOT NULL)
                    THEN set_config('synchronous_commit', 'off', true) END) AS unflushed
 WHERE task.id = due.id AND task.status || '' = 'PENDING'
RETURNING task.id, task.epoch, task.publish_count, task.name, task.queue, task.priority, task.options,
          task.idempotency_key, task.run_at, task.expires_at, task.overlap_key, due.waiting_for_limit
