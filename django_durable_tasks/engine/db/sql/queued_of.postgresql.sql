-- The number of QUEUED tasks of some queues by queue and tenant. The queues are joined and not compared with an array,
-- which would be searched once for each task.
SELECT task.queue, task.tenant_id, count(*)
  FROM durable_tasks_task AS task
  JOIN unnest(%(queues)s::text[]) AS asked (queue) ON asked.queue = task.queue
 WHERE task.status = 'QUEUED'
 GROUP BY task.queue, task.tenant_id
