-- Returns the started run, or what the row shows if it does not start: a stale message costs this statement and no write.
WITH started AS (
UPDATE durable_tasks_task AS task
   SET status = 'RUNNING', epoch = task.epoch + 1, attempts = task.attempts + 1, run_id = %(run_id)s, node = %(node)s,
       started_at = clock_timestamp(), updated_at = clock_timestamp(), due_at = NULL, progress = NULL,
       lease_until = clock_timestamp() + %(lease)s * interval '1 second'
 WHERE task.id = %(id)s AND task.status = 'QUEUED' AND task.epoch = %(epoch)s AND task.cancel_requested_at IS NULL
   AND (%(name)s::text IS NULL OR task.name = %(name)s::text)
   AND (%(queues)s::text[] IS NULL OR task.queue = ANY (%(queues)s::text[]))
   AND (task.expires_at IS NULL OR task.expires_at > clock_timestamp())
   AND NOT EXISTS (SELECT 1 FROM durable_tasks_queue_control AS control
                    WHERE control.name = task.queue AND control.paused_at IS NOT NULL)
RETURNING task.id, task.name, task.queue, task.tenant_id, task.epoch, task.run_id, task.node, task.attempts, task.failures,
          task.crashes, task.max_attempts, task.args, task.kwargs, task.options, task.idempotency_key,
          task.started_at, task.run_at, task.workflow_id, task.has_dependents,
          task.ready_at, coalesce(task.queued_at, task.created_at) AS queued_at, task.fire_time,
          task.recurring_task_id, task.limit_key)
SELECT started.*, seen.status, seen.epoch, seen.queue, coalesce(seen.expires_at <= clock_timestamp(), false),
       EXISTS (SELECT 1 FROM durable_tasks_queue_control AS control
                WHERE control.name = seen.queue AND control.paused_at IS NOT NULL)
  FROM (SELECT 1) AS always
  LEFT JOIN started ON true
  LEFT JOIN durable_tasks_task AS seen ON started.id IS NULL AND seen.id = %(id)s
