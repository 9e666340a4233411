-- The time of new tasks, and whether COPY may write them: PostgreSQL refuses it under row-level security.
SELECT clock_timestamp(), NOT row_security_active('durable_tasks_task')
