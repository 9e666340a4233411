-- A loose scan of the pending index: one probe for each queue after `past`, at most `limit` of them, then one probe
-- for each of the ten priorities of a queue.
WITH RECURSIVE queues (queue, number) AS (
  (SELECT queue, 1 FROM durable_tasks_task WHERE status = 'PENDING' AND NOT in_batch AND queue > %(past)s ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT task.queue FROM durable_tasks_task AS task
           WHERE task.status = 'PENDING' AND NOT task.in_batch AND task.queue > queues.queue ORDER BY task.queue LIMIT 1), number + 1
    FROM queues WHERE queues.queue IS NOT NULL AND number < %(limit)s)
SELECT queues.queue, min(head.due_at)
  FROM queues
 CROSS JOIN generate_series(0, 9) AS level (priority)
  LEFT JOIN LATERAL (
   SELECT due_at FROM durable_tasks_task
    WHERE status = 'PENDING' AND NOT in_batch AND queue = queues.queue AND priority = level.priority
    ORDER BY due_at LIMIT 1) AS head ON TRUE
 WHERE queues.queue IS NOT NULL
 GROUP BY queues.queue
 ORDER BY queues.queue
