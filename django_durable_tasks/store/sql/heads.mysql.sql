-- A loose scan of the pending index: one probe for each queue after `past`, at most `limit` of them, then one probe
-- for each of the ten priorities of a queue. `levels`: bit n is set if a task of priority n is due by `until`. `limit` is
-- required: both servers end a recursion after 1,000 steps, MariaDB without an error.
WITH RECURSIVE queues (queue, number) AS (
  SELECT min(queue), 1 FROM durable_tasks_task WHERE status = 'PENDING' AND in_batch = 0 AND queue > %(past)s
  UNION ALL
  SELECT (SELECT min(task.queue) FROM durable_tasks_task AS task
           WHERE task.status = 'PENDING' AND task.in_batch = 0 AND task.queue > queues.queue), number + 1
    FROM queues WHERE queues.queue IS NOT NULL AND number < %(limit)s),
levels (priority) AS (SELECT 0 UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
  UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)
SELECT queue, min(head), sum(CASE WHEN head <= %(until)s THEN 1 << priority ELSE 0 END) AS levels
  FROM (SELECT queues.queue AS queue, levels.priority AS priority,
               (SELECT min(task.due_at) FROM durable_tasks_task AS task
                 WHERE task.status = 'PENDING' AND task.in_batch = 0 AND task.queue = queues.queue AND task.priority = levels.priority) AS head
          FROM queues CROSS JOIN levels
         WHERE queues.queue IS NOT NULL) AS probes
 GROUP BY queue
 ORDER BY queue
