-- Tasks of one call. They differ in id, arguments, shard and limit key only.
INSERT INTO durable_tasks_task
       (id, args, kwargs, shard_key, tenant_id, name, queue, priority, options, status, run_at,
        due_at, expires_at,
        epoch, publish_count, max_attempts, max_crashes, on_orphan, expected_duration, limit_key, weight,
        target_type, encryption_key, in_batch)
SELECT created.id, created.args::jsonb, created.kwargs::jsonb, created.shard_key, %(tenant_id)s::bigint, %(name)s::text,
       %(queue)s::text, %(priority)s::smallint, %(options)s::jsonb, %(status)s::text,
       COALESCE(%(run_at)s::timestamptz, statement_timestamp()),
       COALESCE(%(run_at)s::timestamptz, statement_timestamp()) + %(wait)s::float8 * interval '1 second',
       COALESCE(%(expires_at)s::timestamptz, COALESCE(%(run_at)s::timestamptz, statement_timestamp())
                + %(expires_in)s::float8 * interval '1 second'),
       %(epoch)s::bigint, %(publish_count)s::integer, %(max_attempts)s::integer, %(max_crashes)s::integer,
       %(on_orphan)s::text, %(expected_duration)s::float8 * interval '1 second', created.limit_key,
       %(weight)s::smallint, %(target_type)s::text, %(encryption_key)s::text, %(in_batch)s::boolean
  FROM unnest(%(ids)s::uuid[], %(argses)s::text[], %(kwargses)s::text[], %(shards)s::smallint[], %(limit_keys)s::text[])
       AS created (id, args, kwargs, shard_key, limit_key)
