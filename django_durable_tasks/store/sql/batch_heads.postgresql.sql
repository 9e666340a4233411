-- A loose scan of the batch index: one probe for each queue and task name after `past`, at most `limit` of them, then
-- one probe for each of the ten priorities. The priority is the highest one with a due task.
WITH RECURSIVE pairs (queue, name, number) AS (
  (SELECT queue, name, 1 FROM durable_tasks_task
    WHERE status = 'PENDING' AND in_batch AND (queue, name) > (%(queue)s, %(name)s) ORDER BY queue, name LIMIT 1)
  UNION ALL
  SELECT hit.queue, hit.name, pairs.number + 1
    FROM pairs
   CROSS JOIN LATERAL (
     SELECT task.queue, task.name FROM durable_tasks_task AS task
      WHERE task.status = 'PENDING' AND task.in_batch AND (task.queue, task.name) > (pairs.queue, pairs.name)
      ORDER BY task.queue, task.name LIMIT 1) AS hit
   WHERE pairs.number < %(limit)s)
SELECT pairs.queue, pairs.name, min(head.due_at), max(level.priority) FILTER (WHERE head.due_at <= %(now)s)
  FROM pairs
 CROSS JOIN generate_series(0, 9) AS level (priority)
 CROSS JOIN LATERAL (
   SELECT due_at FROM durable_tasks_task
    WHERE status = 'PENDING' AND in_batch AND queue = pairs.queue AND name = pairs.name AND priority = level.priority
    ORDER BY due_at LIMIT 1) AS head
 GROUP BY pairs.queue, pairs.name
 ORDER BY pairs.queue, pairs.name
