-- A loose scan of the pending index: one probe for each queue, then one for each of its ten priorities.
WITH RECURSIVE queues (queue) AS (
  SELECT min(queue) FROM durable_tasks_task WHERE status = 'PENDING'
  UNION ALL
  SELECT (SELECT min(task.queue) FROM durable_tasks_task AS task
           WHERE task.status = 'PENDING' AND task.queue > queues.queue)
    FROM queues WHERE queues.queue IS NOT NULL),
levels (priority) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))
SELECT queue, min(head)
  FROM (SELECT queues.queue AS queue,
               (SELECT min(task.alarm_at) FROM durable_tasks_task AS task
                 WHERE task.status = 'PENDING' AND task.queue = queues.queue AND task.priority = levels.priority) AS head
          FROM queues CROSS JOIN levels
         WHERE queues.queue IS NOT NULL) AS probes
 WHERE head IS NOT NULL
 GROUP BY queue
