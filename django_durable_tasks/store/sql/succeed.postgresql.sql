-- The ending, its log entry and, for a task in a graph, its ending event, in one statement. It inserts no row if the
-- run was fenced.
WITH ended AS (
  UPDATE durable_tasks_task AS task
     SET status = 'SUCCESS', epoch = task.epoch + 1, result = %(result)s, completed_at = clock_timestamp(),
         updated_at = clock_timestamp(), lease_until = NULL, open_key = NULL, open_unique_key = NULL,
         cancel_requested_at = NULL, reason = '',
         encryption_key = CASE WHEN %(encryption_key)s::text IS NULL THEN task.encryption_key
                               WHEN COALESCE(task.encryption_key, %(encryption_key)s::text) = %(encryption_key)s::text
                               THEN %(encryption_key)s::text ELSE '*' END
   WHERE task.id = %(id)s AND task.status = 'RUNNING' AND task.epoch = %(epoch)s AND task.run_id = %(run_id)s
  RETURNING task.id, task.tenant_id, task.attempts, task.started_at, task.completed_at, task.node, task.run_id,
            task.ready_at, COALESCE(task.queued_at, task.created_at) AS queued_at, task.epoch, task.workflow_id, task.has_dependents),
noted AS (
  INSERT INTO durable_tasks_ending_event (task_id, epoch, workflow_id, status, resolved)
  SELECT id, epoch, workflow_id, 'SUCCESS', NOT has_dependents
    FROM ended WHERE has_dependents OR workflow_id IS NOT NULL)
INSERT INTO durable_tasks_execution_log
       (task_id, tenant_id, attempt_number, status, ready_at, queued_at, started_at, completed_at, worker, node, run_id, celery_id)
SELECT id, tenant_id, attempts, 'SUCCESS', ready_at, queued_at, started_at, completed_at, %(worker)s, node, run_id, %(celery_id)s
  FROM ended
