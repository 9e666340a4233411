-- The first tasks of each waitlist in their order: one range of the index of tasks that wait for a limit per scope.
-- `released`: also tasks that were released and not claimed yet.
SELECT hit.waiting_for_limit, hit.id, hit.name, hit.queue, hit.tenant_id, hit.limit_key, hit.weight, hit.priority,
       hit.expires_at, hit.ready_at
  FROM unnest(%(scopes)s::text[], %(numbers)s::int[], %(leasts)s::int[], %(mosts)s::int[], %(pasts)s::timestamptz[],
              %(past_ids)s::uuid[])
       WITH ORDINALITY AS asked (scope, number, least, most, past, past_id, position)
 CROSS JOIN LATERAL (
   SELECT waiting_for_limit, id, name, queue, tenant_id, limit_key, weight, priority, expires_at, ready_at
     FROM durable_tasks_task
    WHERE waiting_for_limit IS NOT NULL AND waiting_for_limit = asked.scope AND status || '' = 'PENDING'
      AND priority >= asked.least AND priority <= asked.most AND (ready_at, id) > (asked.past, asked.past_id)
      AND (due_at >= %(never)s OR (%(released)s AND due_at <= clock_timestamp()))
    ORDER BY priority DESC, ready_at, id
    LIMIT asked.number) AS hit
 ORDER BY asked.position, hit.priority DESC, hit.ready_at, hit.id
