-- One INSERT. If a key (idempotency key, open key, open unique key) is taken, it inserts nothing and raises no error.
-- If `wait` is NULL, the task is BLOCKED and due_at is NULL. {columns}: see states/inserts.py.
INSERT INTO durable_tasks_task
       ({columns}, run_at, due_at, expires_at, expected_duration, open_key, open_unique_key, unresolved_dependencies_count)
VALUES ({parameters},
        COALESCE(%(run_at)s, statement_timestamp()),
        COALESCE(%(run_at)s, statement_timestamp()) + %(wait)s::float8 * interval '1 second',
        COALESCE(%(expires_at)s, COALESCE(%(run_at)s, statement_timestamp()) + %(expires_in)s * interval '1 second'),
        %(expected_duration)s * interval '1 second', %(key)s, %(unique_key)s, %(unresolved)s)
    ON CONFLICT DO NOTHING
