-- The number of QUEUED tasks, and of QUEUED and RUNNING tasks, of some queues by queue and tenant. The queues are joined
-- and not compared with an array, which would be searched once for each task. Each status is read by its partial index.
SELECT task.queue, task.tenant_id, count(*) FILTER (WHERE task.is_queued), count(*)
  FROM (SELECT queue, tenant_id, true AS is_queued FROM durable_tasks_task WHERE status = 'QUEUED'
         UNION ALL
        SELECT queue, tenant_id, false FROM durable_tasks_task WHERE status = 'RUNNING') AS task
  JOIN unnest(%(queues)s::text[]) AS asked (queue) ON asked.queue = task.queue
 GROUP BY task.queue, task.tenant_id
