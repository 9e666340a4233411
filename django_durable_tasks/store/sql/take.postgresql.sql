-- Starts due tasks of one name in one queue. One range scan of the batch index for each priority, the highest first.
-- A row without a run id is a task that has expired; the caller sets it to EXPIRED.
-- MATERIALIZED, because a plan that re-evaluates a subquery with LIMIT ... SKIP LOCKED locks more rows than requested.
-- statement_timestamp(), because clock_timestamp() is no index condition: all tasks that are due later would be read.
-- status || '' is hidden from the planner, which would read all PENDING rows for a plain comparison if its statistics
-- are old.
WITH due AS MATERIALIZED (
  SELECT hit.id, row_number() OVER () AS number,
         hit.expires_at IS NOT NULL AND hit.expires_at <= clock_timestamp() AS expired
    FROM (SELECT priority FROM generate_series(9, 0, -1) AS level (priority) ORDER BY priority DESC) AS level
   CROSS JOIN LATERAL (
     SELECT id, expires_at
       FROM durable_tasks_task
      WHERE status = 'PENDING' AND in_batch AND queue = %(queue)s AND name = %(name)s AND priority = level.priority
        AND due_at <= statement_timestamp()
      ORDER BY due_at
      LIMIT %(limit)s
        FOR NO KEY UPDATE SKIP LOCKED) AS hit
   WHERE NOT EXISTS (SELECT 1 FROM durable_tasks_queue_control AS control
                      WHERE control.name = %(queue)s AND control.paused_at IS NOT NULL)
   LIMIT %(limit)s),
taken AS (
  UPDATE durable_tasks_task AS task
     SET status = 'RUNNING', epoch = task.epoch + 1, attempts = task.attempts + 1, run_id = (%(run_ids)s::uuid[])[due.number::integer],
         node = %(node)s, waiting_for_limit = NULL, ready_at = task.due_at, queued_at = clock_timestamp(),
         started_at = clock_timestamp(), updated_at = clock_timestamp(), due_at = NULL, progress = NULL, publish_count = 0,
         lease_until = clock_timestamp() + %(lease)s * interval '1 second'
    FROM due
   WHERE task.id = due.id AND NOT due.expired AND task.status || '' = 'PENDING'
  RETURNING task.id, task.name, task.queue, task.tenant_id, task.epoch, task.run_id, task.node, task.attempts, task.failures,
            task.crashes, task.max_attempts, task.args, task.kwargs, task.options, task.idempotency_key,
            task.started_at, task.run_at, task.workflow_id, task.has_dependents,
            task.ready_at, task.queued_at, task.fire_time, task.recurring_task_id, task.limit_key)
SELECT due.id, taken.name, taken.queue, taken.tenant_id, taken.epoch, taken.run_id, taken.node, taken.attempts, taken.failures,
       taken.crashes, taken.max_attempts, taken.args, taken.kwargs, taken.options, taken.idempotency_key,
       taken.started_at, taken.run_at, taken.workflow_id, taken.has_dependents,
       taken.ready_at, taken.queued_at, taken.fire_time, taken.recurring_task_id, taken.limit_key
  FROM due LEFT JOIN taken ON taken.id = due.id
 ORDER BY due.number
