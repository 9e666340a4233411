-- Starts claimed tasks in the process that claimed them.
UPDATE durable_tasks_task AS task
   SET status = 'RUNNING', epoch = task.epoch + 1, attempts = task.attempts + 1, run_id = claimed.run_id, node = %(node)s,
       started_at = clock_timestamp(), updated_at = clock_timestamp(), due_at = NULL, progress = NULL,
       lease_until = clock_timestamp() + claimed.lease * interval '1 second'
  FROM unnest(%(ids)s::uuid[], %(epochs)s::bigint[], %(run_ids)s::uuid[], %(leases)s::float8[]) AS claimed (id, epoch, run_id, lease)
 WHERE task.id = claimed.id AND task.status = 'QUEUED' AND task.epoch = claimed.epoch AND task.cancel_requested_at IS NULL
   AND (task.expires_at IS NULL OR task.expires_at > clock_timestamp())
   AND NOT EXISTS (SELECT 1 FROM durable_tasks_queue_control AS control
                    WHERE control.name = task.queue AND control.paused_at IS NOT NULL)
RETURNING task.id, task.name, task.queue, task.tenant_id, task.epoch, task.run_id, task.node, task.attempts, task.failures,
          task.crashes, task.max_attempts, task.args, task.kwargs, task.options, task.idempotency_key,
          task.started_at, task.run_at, task.workflow_id, task.has_dependents,
          task.ready_at, coalesce(task.queued_at, task.created_at) AS queued_at, task.fire_time,
          task.recurring_task_id, task.limit_key
