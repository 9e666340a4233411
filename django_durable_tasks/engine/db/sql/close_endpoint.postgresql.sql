UPDATE durable_tasks_endpoint
   SET failures = 0, openings = 0, open_until = NULL, probe_until = NULL, updated_at = clock_timestamp()
 WHERE key = %(key)s AND (failures > 0 OR open_until IS NOT NULL)
