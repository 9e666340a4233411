-- The key of requests is unique within the default partition only. So their entries must be there: they have no unique
-- fire time.
SET LOCAL lock_timeout = '5s';
ALTER TABLE durable_tasks_occurrence
  DROP CONSTRAINT IF EXISTS durable_occurrence_request,
  ADD CONSTRAINT durable_occurrence_request CHECK (request_id IS NULL OR unique_fire_time IS NULL) NOT VALID;
