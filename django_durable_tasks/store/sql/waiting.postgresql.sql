-- Counts the waiting tasks of each queue, and those that are due, by ranges of the pending index. Each count stops at
-- `limit`, so the cost does not grow with a backlog of millions.
SELECT asked.queue, pending.number, due.number
  FROM unnest(%(queues)s::text[]) AS asked (queue)
 CROSS JOIN LATERAL (
   SELECT count(*) AS number
     FROM (SELECT 1
             FROM generate_series(0, 9) AS level (priority)
            CROSS JOIN LATERAL (
             SELECT 1 FROM durable_tasks_task
              WHERE status = 'PENDING' AND NOT in_batch AND queue = asked.queue AND priority = level.priority
              LIMIT %(limit)s) AS hit
            LIMIT %(limit)s) AS counted
 ) AS pending
 CROSS JOIN LATERAL (
   SELECT count(*) AS number
     FROM (SELECT 1
             FROM generate_series(0, 9) AS level (priority)
            CROSS JOIN LATERAL (
             SELECT 1 FROM durable_tasks_task
              WHERE status = 'PENDING' AND NOT in_batch AND queue = asked.queue AND priority = level.priority AND due_at <= %(now)s
              LIMIT %(limit)s) AS hit
            LIMIT %(limit)s) AS counted
 ) AS due
