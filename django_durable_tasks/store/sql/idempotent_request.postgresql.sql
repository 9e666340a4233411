-- Sets the time limits of this transaction, as bound.postgresql.sql does, and inserts the row of an Idempotency-Key;
-- inserts nothing if the key is taken. Waits for a concurrent transaction that has inserted it, at most `lock`, because
-- PostgreSQL reads lock_timeout when a wait begins. Needs no savepoint, because a taken key is no error.
WITH limits AS MATERIALIZED (
    SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true),
           set_config('idle_in_transaction_session_timeout', %(idle)s, true)
)
INSERT INTO durable_tasks_idempotent_request
       (tenant_id, key, operation, fingerprint, status_code, headers, created_at)
SELECT %(tenant_id)s::bigint, %(key)s::text, %(operation)s::text, %(fingerprint)s::text, 0, '{}'::jsonb,
       statement_timestamp()
  FROM limits
    ON CONFLICT DO NOTHING
RETURNING id
