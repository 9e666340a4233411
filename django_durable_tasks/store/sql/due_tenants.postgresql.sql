-- The tenants other than the default one with due tasks in these queues, by a loose scan of the index of turns: one probe
-- for each priority of a tenant until one has a due task. Of each queue at most `limit` tenants with an id above that of
-- `pasts`.
WITH RECURSIVE heads (queue, tenant_id, priority, is_due, number) AS (
  SELECT queue, past, 32767, false, 0
    FROM unnest(%(queues)s::text[], %(pasts)s::bigint[]) AS asked (queue, past)
  UNION ALL
  SELECT heads.queue, hit.tenant_id, hit.priority::integer, hit.due_at <= %(now)s,
         heads.number + (hit.due_at <= %(now)s)::integer
    FROM heads
   CROSS JOIN LATERAL (
     SELECT task.tenant_id, task.priority, task.due_at
       FROM durable_tasks_task AS task
      WHERE task.status = 'PENDING' AND NOT task.in_batch AND task.tenant_id > 1 AND task.queue = heads.queue
        AND (task.tenant_id, task.priority) > (heads.tenant_id, CASE WHEN heads.is_due THEN 32767 ELSE heads.priority END)
      ORDER BY task.tenant_id, task.priority, task.due_at LIMIT 1) AS hit
   WHERE heads.number < %(limit)s)
SELECT queue, tenant_id FROM heads WHERE is_due
