-- Rows whose instant has come, by their ids: what moved, is held by somebody else or is not due yet is left alone.
-- MATERIALIZED, because the rows are locked in primary-key order before any of them is written.
-- Not flushed: a claim that a crash of the server takes back is made again, and its ring finds no row QUEUED. The WAL is
-- one line, so a start that was flushed has flushed its claim. But claims with overlap keys are judged after their COMMIT: a ring
-- of a claim that was taken back must not start a row that is about to be refused.
WITH due AS MATERIALIZED (
  SELECT id, waiting_for_limit, overlap_key
    FROM durable_tasks_task
   WHERE id = ANY (%(ids)s::uuid[]) AND status || '' = 'PENDING' AND due_at <= clock_timestamp()
   ORDER BY id
     FOR NO KEY UPDATE SKIP LOCKED)
UPDATE durable_tasks_task AS task
   SET status = 'QUEUED', waiting_for_limit = NULL, epoch = task.epoch + 1, publish_count = task.publish_count + 1, node = %(node)s,
       due_at = clock_timestamp() + %(wait)s * interval '1 second', updated_at = clock_timestamp()
  FROM due,
       (SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM due WHERE overlap_key IS NOT NULL)
                    THEN set_config('synchronous_commit', 'off', true) END) AS unflushed
 WHERE task.id = due.id AND task.status || '' = 'PENDING'
RETURNING task.id, task.epoch, task.publish_count, task.name, task.queue, task.priority, task.options,
          task.idempotency_key, task.run_at, task.expires_at, task.overlap_key, due.waiting_for_limit
