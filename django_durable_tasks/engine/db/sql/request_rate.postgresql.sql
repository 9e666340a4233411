-- Counts a request of a tenant if its rate admits it, and returns when the whole window is free again.
UPDATE durable_tasks_tenant_requests
   SET free_at = GREATEST(free_at, %(at)s) + %(interval)s
 WHERE tenant_id = %(tenant_id)s AND free_at <= %(at)s + %(window)s - %(interval)s
RETURNING free_at
