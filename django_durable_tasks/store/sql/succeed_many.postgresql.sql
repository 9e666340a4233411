-- The successes of several runs in one statement, each with the guard of its task, its log entry and, for a task in a
-- graph, its ending event. Returns the runs that were accepted; the others were fenced.
-- The rows are locked in primary-key order first, because heartbeats and operators lock them in this order.
-- Epoch and run id are compared twice. Each comparison alone refuses every fenced run, because both are evaluated on the
-- newest version of the row if another transaction changed it: tests/concurrency/test_batch_guards.py passes without
-- either one, and fails without both. That of the lock avoids locks of the rows of other runs, and that of the UPDATE
-- does not depend on the lock.
-- started_at: the database's time of the start, plus how long the run waited behind others of its batch.
WITH success AS MATERIALIZED (
  SELECT * FROM unnest(string_to_array(%(ids)s, ',')::uuid[], string_to_array(%(epochs)s, ',')::bigint[],
                       string_to_array(%(runs)s, ',')::uuid[], %(results)s::text[], %(keys)s::text[],
                       string_to_array(%(waits)s, ',')::float8[], string_to_array(%(celery_ids)s, ','))
             AS success (id, epoch, run_id, result, encryption_key, wait, celery_id)),
owned AS MATERIALIZED (
  SELECT task.id
    FROM durable_tasks_task AS task JOIN success ON task.id = success.id
   WHERE task.status || '' = 'RUNNING' AND task.epoch = success.epoch AND task.run_id = success.run_id
   ORDER BY task.id
     FOR NO KEY UPDATE OF task),
ended AS (
  UPDATE durable_tasks_task AS task
     SET status = 'SUCCESS', epoch = task.epoch + 1, result = success.result::jsonb, completed_at = clock_timestamp(),
         started_at = task.started_at + success.wait * interval '1 second',
         updated_at = clock_timestamp(), lease_until = NULL, open_key = NULL, open_unique_key = NULL,
         cancel_requested_at = NULL, reason = '',
         encryption_key = CASE WHEN success.encryption_key IS NULL THEN task.encryption_key
                               WHEN COALESCE(task.encryption_key, success.encryption_key) = success.encryption_key
                               THEN success.encryption_key ELSE '*' END
    FROM success, owned
   WHERE task.id = success.id AND task.id = owned.id AND task.status || '' = 'RUNNING' AND task.epoch = success.epoch
     AND task.run_id = success.run_id
  RETURNING task.id, task.tenant_id, task.attempts, task.started_at, task.completed_at, task.node, task.run_id,
            task.ready_at, COALESCE(task.queued_at, task.created_at) AS queued_at, task.epoch, task.workflow_id,
            task.has_dependents, success.celery_id),
noted AS (
  INSERT INTO durable_tasks_ending_event (task_id, epoch, workflow_id, status, resolved)
  SELECT id, epoch, workflow_id, 'SUCCESS', NOT has_dependents
    FROM ended WHERE has_dependents OR workflow_id IS NOT NULL)
INSERT INTO durable_tasks_execution_log
       (task_id, tenant_id, attempt_number, status, ready_at, queued_at, started_at, completed_at, worker, node, run_id, celery_id)
SELECT id, tenant_id, attempts, 'SUCCESS', ready_at, queued_at, started_at, completed_at, %(worker)s, node, run_id, celery_id
  FROM ended
RETURNING run_id
