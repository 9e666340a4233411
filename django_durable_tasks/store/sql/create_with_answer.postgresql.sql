-- Inserts a task without keys, the row of an Idempotency-Key with its answer, and the audit entries, as one statement that
-- is its own transaction. Inserts nothing if the Idempotency-Key is taken. Waits for a concurrent transaction that has
-- inserted it, at most `lock`, because PostgreSQL reads lock_timeout when a wait begins.
WITH limits AS MATERIALIZED (
    SELECT set_config('lock_timeout', %(lock)s, true)
), request AS (
    INSERT INTO durable_tasks_idempotent_request
           (tenant_id, key, operation, fingerprint, status_code, headers, body, created_at)
    SELECT %(tenant_id)s::bigint, %(request_key)s::text, %(operation)s::text, %(fingerprint)s::text,
           %(status_code)s::smallint, %(headers)s::jsonb, %(body)s::jsonb, statement_timestamp()
      FROM limits
        ON CONFLICT DO NOTHING
    RETURNING id
), task AS (
    INSERT INTO durable_tasks_task
           ({columns}, run_at, due_at, expires_at, created_at, updated_at, expected_duration, unresolved_dependencies_count)
    SELECT {parameters}, %(run_at)s::timestamptz, %(due_at)s::timestamptz, %(expires_at)s::timestamptz,
           %(now)s::timestamptz, %(now)s::timestamptz, %(expected_duration)s::float8 * interval '1 second',
           %(unresolved)s::integer
      FROM request
)
INSERT INTO durable_tasks_audit_entry
       (tenant_id, source, actor, operation, object_type, object_id, count, object_ids, before, after, reason, address)
SELECT entry.* FROM request, json_to_recordset(%(entries)s::json)
       AS entry (tenant_id bigint, source text, actor text, operation text, object_type text, object_id text,
                 count integer, object_ids jsonb, before jsonb, after jsonb, reason text, address inet)
