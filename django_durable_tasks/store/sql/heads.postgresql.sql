-- A loose scan of the pending index: one probe for each queue and priority with tasks. Returns the queues with tasks that
-- are due by `until`, or all if `everything`.
-- `levels`: bit n is set if a task of priority n is due by `until`.
WITH RECURSIVE heads (queue, priority, due_at) AS (
  (SELECT queue, priority, due_at
     FROM durable_tasks_task
    WHERE status = 'PENDING' AND NOT in_batch
    ORDER BY queue, priority, due_at LIMIT 1)
  UNION ALL
  SELECT following.queue, following.priority, following.due_at
    FROM heads
   CROSS JOIN LATERAL (
     SELECT task.queue, task.priority, task.due_at
       FROM durable_tasks_task AS task
      WHERE task.status = 'PENDING' AND NOT task.in_batch AND (task.queue, task.priority) > (heads.queue, heads.priority)
      ORDER BY task.queue, task.priority, task.due_at LIMIT 1) AS following)
SELECT queue, min(due_at), coalesce(bit_or(1 << priority) FILTER (WHERE due_at <= %(until)s), 0) AS levels
  FROM heads
 WHERE priority BETWEEN 0 AND 9 AND (%(everything)s OR due_at <= %(until)s)
 GROUP BY queue
