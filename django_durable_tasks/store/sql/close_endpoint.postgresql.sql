UPDATE durable_tasks_endpoint
   SET failures = 0, openings = 0, open_until = NULL, probe_until = NULL, updated_at = clock_timestamp(),
       gone_at = CASE WHEN gone_at > clock_timestamp() - make_interval(secs => %(calm)s) THEN gone_at END
 WHERE key = %(key)s
   AND (failures > 0 OR open_until IS NOT NULL
        OR gone_at <= clock_timestamp() - make_interval(secs => %(calm)s))
