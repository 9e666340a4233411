-- One probe of the pending index for each of these queues and each of its ten priorities. No scan.
SELECT asked.queue
  FROM unnest(%(queues)s::text[]) AS asked (queue)
 WHERE EXISTS (
   SELECT 1
     FROM generate_series(0, 9) AS level (priority)
    CROSS JOIN LATERAL (
      SELECT 1 FROM durable_tasks_task
       WHERE status = 'PENDING' AND NOT in_batch AND queue = asked.queue AND priority = level.priority AND due_at < %(since)s
       LIMIT 1) AS hit)
