-- The number and the weight of QUEUED and, if `running`, of RUNNING tasks, and the paused queues. The tasks of one
-- status are read by its partial index, so the cost does not depend on the other tasks.
SELECT 'QUEUED', name, queue, tenant_id, limit_key, count(*), sum(weight)
  FROM durable_tasks_task
 WHERE status = 'QUEUED'
 GROUP BY name, queue, tenant_id, limit_key
 UNION ALL
SELECT 'RUNNING', name, queue, tenant_id, limit_key, count(*), sum(weight)
  FROM durable_tasks_task
 WHERE status = 'RUNNING' AND %(running)s
 GROUP BY name, queue, tenant_id, limit_key
 UNION ALL
SELECT '', '', name, 0, NULL, 0, 0
  FROM durable_tasks_queue_control
 WHERE paused_at IS NOT NULL
