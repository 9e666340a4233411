-- Claims due tasks as claim.postgresql.sql does, and starts those of the names in `leases` in the same statement. A task
-- with an overlap key is claimed only, because these keys are checked after the COMMIT; so is one that has expired.
-- MATERIALIZED and status || '': see claim.postgresql.sql. The COMMIT is flushed, unlike that of a claim: after a crash of
-- the server no other run may have the same epoch, which functions give to outside systems as `fence`.
WITH due AS MATERIALIZED (
  SELECT part.id, part.overlap_key, part.waiting_for_limit,
         CASE WHEN part.overlap_key IS NULL AND (part.expires_at IS NULL OR part.expires_at > clock_timestamp())
              THEN (%(leases)s::jsonb ->> part.name)::float8 END AS lease
    FROM unnest(%(queues)s::text[], %(limits)s::int[], %(levels)s::int[]) AS asked (queue, number, levels)
   CROSS JOIN LATERAL (
     SELECT hit.id, hit.name, hit.overlap_key, hit.waiting_for_limit, hit.expires_at
       FROM (SELECT priority FROM generate_series(9, 0, -1) AS level (priority)
              WHERE asked.levels & (1 << priority) <> 0 ORDER BY priority DESC) AS level
      CROSS JOIN LATERAL (
        SELECT id, name, overlap_key, waiting_for_limit, expires_at
          FROM durable_tasks_task
         WHERE status = 'PENDING' AND NOT in_batch AND queue = asked.queue AND priority = level.priority AND due_at <= %(now)s
         ORDER BY due_at
         LIMIT asked.number
           FOR NO KEY UPDATE SKIP LOCKED) AS hit
      WHERE NOT EXISTS (SELECT 1 FROM durable_tasks_queue_control AS control
                         WHERE control.name = asked.queue AND control.paused_at IS NOT NULL)
      LIMIT asked.number) AS part
   LIMIT %(limit)s)
UPDATE durable_tasks_task AS task
   SET status = CASE WHEN due.lease IS NULL THEN 'QUEUED' ELSE 'RUNNING' END, epoch = task.epoch + 1, node = %(node)s,
       waiting_for_limit = NULL, ready_at = task.due_at, queued_at = clock_timestamp(), updated_at = clock_timestamp(),
       publish_count = CASE WHEN due.lease IS NULL THEN task.publish_count + 1 ELSE 0 END,
       due_at = CASE WHEN due.lease IS NULL THEN clock_timestamp() + %(wait)s * interval '1 second' END,
       attempts = CASE WHEN due.lease IS NULL THEN task.attempts ELSE task.attempts + 1 END,
       run_id = CASE WHEN due.lease IS NULL THEN task.run_id ELSE gen_random_uuid() END,
       started_at = CASE WHEN due.lease IS NULL THEN task.started_at ELSE clock_timestamp() END,
       progress = CASE WHEN due.lease IS NULL THEN task.progress END,
       lease_until = CASE WHEN due.lease IS NULL THEN task.lease_until ELSE clock_timestamp() + due.lease * interval '1 second' END
  FROM due
 WHERE task.id = due.id AND task.status || '' = 'PENDING'
RETURNING task.id, task.name, task.queue, task.tenant_id, task.epoch, task.run_id, task.node, task.attempts, task.failures,
          task.crashes, task.max_attempts, task.args, task.kwargs, task.options, task.idempotency_key,
          task.started_at, task.run_at, task.workflow_id, task.has_dependents,
          task.ready_at, task.queued_at, task.fire_time, task.recurring_task_id, task.limit_key,
          task.status, task.priority, task.publish_count, task.expires_at, task.overlap_key, due.waiting_for_limit, task.weight
