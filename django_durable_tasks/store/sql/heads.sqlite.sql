-- A loose scan of the pending index: one probe for each queue after `past`, at most `limit` of them, then one probe
-- for each of the ten priorities of a queue. `levels`: bit n is set if a task of priority n is due by `until`.
WITH RECURSIVE queues (queue, number) AS (
  SELECT min(queue), 1 FROM durable_tasks_task WHERE status = 'PENDING' AND NOT in_batch AND queue > %(past)s
  UNION ALL
  SELECT (SELECT min(task.queue) FROM durable_tasks_task AS task
           WHERE task.status = 'PENDING' AND NOT task.in_batch AND task.queue > queues.queue), number + 1
    FROM queues WHERE queues.queue IS NOT NULL AND number < %(limit)s),
levels (priority) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))
SELECT queue, min(head), sum(CASE WHEN head <= %(until)s THEN 1 << priority ELSE 0 END) AS levels
  FROM (SELECT queues.queue AS queue, levels.priority AS priority,
               (SELECT min(task.due_at) FROM durable_tasks_task AS task
                 WHERE task.status = 'PENDING' AND NOT task.in_batch AND task.queue = queues.queue AND task.priority = levels.priority) AS head
          FROM queues CROSS JOIN levels
         WHERE queues.queue IS NOT NULL) AS probes
 GROUP BY queue
 ORDER BY queue
