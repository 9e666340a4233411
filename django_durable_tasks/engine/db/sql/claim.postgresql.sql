-- For each queue one range scan per priority, the highest first; the LIMITs stop the scans when the queue's part, or the
-- batch, is full. The queues have their turns in the order in which they are given.
-- The last guard is hidden from the planner, which with old statistics would read all PENDING rows for it.
-- MATERIALIZED, because a plan that re-evaluates a LIMIT ... SKIP LOCKED subquery claims more rows than asked for.
-- Not flushed: a claim that a crash of the server takes back is made again, and its ring finds no row QUEUED. The WAL is
-- one line, so a start that was flushed has flushed its claim. But claims with overlap keys are judged after their COMMIT: a ring
-- of a claim that was taken back must not start a row that is about to be refused.
WITH due AS MATERIALIZED (
  SELECT part.id, part.waiting_for_limit, part.overlap_key
    FROM unnest(%(queues)s::text[], %(limits)s::int[], %(leasts)s::int[]) AS asked (queue, number, least)
   CROSS JOIN LATERAL (
     SELECT hit.id, hit.waiting_for_limit, hit.overlap_key
       FROM (SELECT priority FROM generate_series(9, asked.least, -1) AS level (priority) ORDER BY priority DESC) AS level
      CROSS JOIN LATERAL (
        SELECT id, waiting_for_limit, overlap_key
          FROM durable_tasks_task
         WHERE status = 'PENDING' AND queue = asked.queue AND priority = level.priority AND due_at <= %(now)s
           AND (%(shards)s::smallint[] IS NULL OR shard_key = ANY (%(shards)s::smallint[]) OR due_at <= %(late)s)
         ORDER BY due_at
         LIMIT asked.number
           FOR NO KEY UPDATE SKIP LOCKED) AS hit
      LIMIT asked.number) AS part
   LIMIT %(limit)s)
UPDATE durable_tasks_task AS task
   SET status = 'QUEUED', waiting_for_limit = NULL, epoch = task.epoch + 1, publish_count = task.publish_count + 1, node = %(node)s,
       due_at = clock_timestamp() + %(wait)s * interval '1 second', updated_at = clock_timestamp()
  FROM due,
       (SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM due WHERE overlap_key IS NOT NULL)
                    THEN set_config('synchronous_commit', 'off', true) END) AS unflushed
 WHERE task.id = due.id AND task.status || '' = 'PENDING'
RETURNING task.id, task.epoch, task.publish_count, task.name, task.queue, task.priority, task.options,
          task.idempotency_key, task.run_at, task.expires_at, task.overlap_key, due.waiting_for_limit
