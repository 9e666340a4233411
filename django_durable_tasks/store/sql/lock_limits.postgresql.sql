-- Locks the row of all limits and returns the time after the lock was obtained.
UPDATE durable_tasks_limit_bucket SET refilled_at = clock_timestamp() WHERE scope = '' RETURNING clock_timestamp()
