-- The first tasks of each waitlist in their order: one range of the index of tasks that wait for a limit per scope.
-- `released`: also tasks that were released and not claimed yet.
SELECT hit.waiting_for_limit, hit.id, hit.name, hit.queue, hit.tenant_id, hit.limit_key, hit.weight, hit.priority,
       hit.expires_at
  FROM unnest(%(scopes)s::text[], %(numbers)s::int[], %(leasts)s::int[])
       WITH ORDINALITY AS asked (scope, number, least, position)
 CROSS JOIN LATERAL (
   SELECT waiting_for_limit, id, name, queue, tenant_id, limit_key, weight, priority, expires_at
     FROM durable_tasks_task
    WHERE waiting_for_limit IS NOT NULL AND waiting_for_limit = asked.scope AND status || '' = 'PENDING'
      AND priority >= asked.least AND (due_at >= %(never)s OR (%(released)s AND due_at <= clock_timestamp()))
    ORDER BY priority DESC, id
    LIMIT asked.number) AS hit
 ORDER BY asked.position, hit.priority DESC, hit.id
