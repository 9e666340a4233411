-- Counts a request of a tenant if its rate admits it, and returns when the whole window is free again.
-- Outside of another transaction (`alone`) the commit does not wait for the disk: if the server crashes, the requests of
-- the last moment are not counted.
WITH durability AS MATERIALIZED (
    SELECT set_config('synchronous_commit',
                      CASE WHEN %(alone)s::boolean THEN 'off' ELSE current_setting('synchronous_commit') END, true)
)
UPDATE durable_tasks_tenant_requests
   SET free_at = GREATEST(free_at, %(at)s) + %(interval)s
  FROM durability
 WHERE tenant_id = %(tenant_id)s AND free_at <= %(at)s + %(window)s - %(interval)s
RETURNING free_at
