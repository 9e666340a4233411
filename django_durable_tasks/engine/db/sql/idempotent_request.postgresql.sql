-- Inserts the row of an Idempotency-Key; inserts nothing if the key is taken. Waits for a concurrent transaction that has
-- inserted it. Needs no savepoint, because a taken key is no error.
INSERT INTO durable_tasks_idempotent_request
       (tenant_id, key, operation, fingerprint, status_code, headers, created_at)
VALUES (%(tenant_id)s, %(key)s, %(operation)s, %(fingerprint)s, 0, '{}', statement_timestamp())
    ON CONFLICT DO NOTHING
RETURNING id
