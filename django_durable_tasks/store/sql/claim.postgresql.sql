-- One range scan for each queue and each priority of its `levels` (bits), the highest priority first. The LIMITs stop
-- the scans when `limits` of the queue or `limit` of the batch is reached. The queues are scanned in the order of the
-- parameter.
-- The last condition, status || '', is hidden from the planner. With old statistics it would read all PENDING rows
-- for a plain comparison.
-- MATERIALIZED, because a plan that re-evaluates a subquery with LIMIT ... SKIP LOCKED claims more rows than
-- requested.
-- synchronous_commit is off for claims. If the server loses a claim in a crash, the task is claimed again, and the
-- message of the lost claim finds no QUEUED row. WAL is flushed in order, so a start is never durable without its
-- claim. Claims with overlap keys are an exception: these keys are checked after the COMMIT, and the message of a
-- lost claim must not start a task that is about to be refused.
WITH due AS MATERIALIZED (
  SELECT part.id, part.waiting_for_limit, part.overlap_key
    FROM unnest(%(queues)s::text[], %(limits)s::int[], %(leasts)s::int[], %(levels)s::int[]) AS asked (queue, number, least, levels)
   CROSS JOIN LATERAL (
     SELECT hit.id, hit.waiting_for_limit, hit.overlap_key
       FROM (SELECT priority FROM generate_series(9, asked.least, -1) AS level (priority)
              WHERE asked.levels & (1 << priority) <> 0 ORDER BY priority DESC) AS level
      CROSS JOIN LATERAL (
        SELECT id, waiting_for_limit, overlap_key
          FROM durable_tasks_task
         WHERE status = 'PENDING' AND NOT in_batch AND queue = asked.queue AND priority = level.priority AND due_at <= %(now)s
           AND (%(shards)s::smallint[] IS NULL OR shard_key = ANY (%(shards)s::smallint[]) OR due_at <= %(late)s)
         ORDER BY due_at
         LIMIT asked.number
           FOR NO KEY UPDATE SKIP LOCKED) AS hit
      LIMIT asked.number) AS part
   LIMIT %(limit)s)
UPDATE durable_tasks_task AS task
   SET status = 'QUEUED', waiting_for_limit = NULL, epoch = task.epoch + 1, publish_count = task.publish_count + 1, node = %(node)s,
       ready_at = task.due_at, queued_at = clock_timestamp(), due_at = clock_timestamp() + %(wait)s * interval '1 second', updated_at = clock_timestamp()
  FROM due,
       (SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM due WHERE overlap_key IS NOT NULL)
                    THEN set_config('synchronous_commit', 'off', true) END) AS unflushed
 WHERE task.id = due.id AND task.status || '' = 'PENDING'
RETURNING task.id, task.epoch, task.publish_count, task.name, task.queue, task.priority, task.options,
          task.idempotency_key, task.run_at, task.expires_at, task.overlap_key, due.waiting_for_limit,
          task.tenant_id, task.limit_key, task.weight, task.ready_at
