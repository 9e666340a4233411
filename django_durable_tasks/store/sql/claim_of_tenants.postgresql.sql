-- Claims due tasks as `claim` does, but those of one tenant other than the default one per element of the parameters, by
-- the index of turns. See `claim` for the rest.
WITH due AS MATERIALIZED (
  SELECT part.id, part.waiting_for_limit, part.overlap_key
    FROM unnest(%(queues)s::text[], %(limits)s::int[], %(leasts)s::int[], %(levels)s::int[],
                %(tenants)s::bigint[]) AS asked (queue, number, least, levels, tenant_id)
   CROSS JOIN LATERAL (
     SELECT hit.id, hit.waiting_for_limit, hit.overlap_key
       FROM (SELECT priority FROM generate_series(9, asked.least, -1) AS level (priority)
              WHERE asked.levels & (1 << priority) <> 0 ORDER BY priority DESC) AS level
      CROSS JOIN LATERAL (
        SELECT id, waiting_for_limit, overlap_key
          FROM durable_tasks_task
         WHERE status = 'PENDING' AND NOT in_batch AND queue = asked.queue AND priority = level.priority AND due_at <= %(now)s
           AND tenant_id > 1 AND tenant_id = asked.tenant_id
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
