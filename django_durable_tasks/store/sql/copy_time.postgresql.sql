-- The time of new tasks, and whether COPY may write tasks and edges: PostgreSQL refuses it under row-level security, and
-- texts are sent in UTF-8.
SELECT clock_timestamp(),
       NOT row_security_active('durable_tasks_task') AND NOT row_security_active('durable_tasks_dependency')
       AND pg_client_encoding() = 'UTF8'
