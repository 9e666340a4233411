-- The time of new tasks, and whether COPY may write them: PostgreSQL refuses it under row-level security, and texts are
-- sent in UTF-8.
SELECT clock_timestamp(), NOT row_security_active('durable_tasks_task') AND pg_client_encoding() = 'UTF8'
