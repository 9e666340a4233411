-- Reads the table without blocking writes, so that the conversion does not read it for this under its lock.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0;
ALTER TABLE durable_tasks_occurrence VALIDATE CONSTRAINT durable_occurrence_request;
