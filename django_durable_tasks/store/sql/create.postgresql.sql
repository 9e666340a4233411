-- One INSERT. If a key (idempotency key, open key, open unique key) is taken, it inserts nothing and raises no error.
-- If `wait` is NULL, the task is BLOCKED and due_at is NULL.
INSERT INTO durable_tasks_task
       (id, tenant_id, name, queue, priority, args, kwargs, options, status, run_at,
        due_at, expires_at,
        epoch, publish_count, max_attempts, max_crashes, on_orphan, expected_duration, idempotency_key,
        key, unique_key, open_key, open_unique_key, shard_key, join_count, on_upstream_failure,
        unresolved_dependencies_count, limit_key, weight, target_type, encryption_key, in_batch)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(queue)s, %(priority)s, %(args)s, %(kwargs)s, %(options)s, %(status)s,
        COALESCE(%(run_at)s, statement_timestamp()),
        COALESCE(%(run_at)s, statement_timestamp()) + %(wait)s::float8 * interval '1 second',
        COALESCE(%(expires_at)s, COALESCE(%(run_at)s, statement_timestamp()) + %(expires_in)s * interval '1 second'),
        %(epoch)s, %(publish_count)s, %(max_attempts)s, %(max_crashes)s, %(on_orphan)s,
        %(expected_duration)s * interval '1 second', %(idempotency_key)s,
        %(key)s, %(unique_key)s, %(key)s, %(unique_key)s, %(shard_key)s, %(join_count)s, %(on_upstream_failure)s,
        %(unresolved)s, %(limit_key)s, %(weight)s, %(target_type)s, %(encryption_key)s, %(in_batch)s)
    ON CONFLICT DO NOTHING
