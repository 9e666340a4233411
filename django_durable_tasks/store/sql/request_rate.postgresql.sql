-- Counts a request of a tenant if its rate admits it, and returns when its bucket is full again.
-- Outside of another transaction (`alone`) the commit does not wait for the disk: if the server crashes, the requests of
-- the last moment are not counted.
WITH durability AS MATERIALIZED (
    SELECT set_config('synchronous_commit',
                      CASE WHEN %(alone)s::boolean THEN 'off' ELSE current_setting('synchronous_commit') END, true)
)
UPDATE durable_tasks_limit_bucket
   SET refilled_at = GREATEST(refilled_at, %(now)s::timestamptz) + %(taken)s * interval '1 microsecond'
  FROM durability
 WHERE scope = 'requests:' || %(tenant_id)s::bigint
   AND refilled_at <= %(now)s::timestamptz + %(free)s * interval '1 microsecond'
RETURNING refilled_at
