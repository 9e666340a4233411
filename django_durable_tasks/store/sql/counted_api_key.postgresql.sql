-- Reads an API key like api_key.postgresql.sql, and counts the request like request_rate.postgresql.sql if the key is valid,
-- its tenant has no rate of its own, and the rate admits it. The last column is NULL if the request was not counted.
WITH durability AS MATERIALIZED (
    SELECT set_config('synchronous_commit',
                      CASE WHEN %(alone)s::boolean THEN 'off' ELSE current_setting('synchronous_commit') END, true)
), found AS MATERIALIZED (
    SELECT api_key.id, api_key.tenant_id, api_key.name, api_key.identifier, api_key.mode, api_key.digest,
           api_key.scopes, api_key.expires_at, api_key.revoked_at, api_key.last_used_at,
           tenant.id AS id_of_tenant, tenant.slug, tenant.name AS name_of_tenant,
           quota.tenant_id AS quota_of_tenant, quota.open_tasks, quota.recurring_tasks,
       quota.runs_per_day, quota.calendars, quota.payload_bytes, quota.requests
      FROM durable_tasks_api_key AS api_key
      JOIN durable_tasks_tenant AS tenant ON tenant.id = api_key.tenant_id
      LEFT JOIN durable_tasks_tenant_quota AS quota ON quota.tenant_id = tenant.id
     WHERE api_key.identifier = %(identifier)s
), counted AS (
    UPDATE durable_tasks_limit_bucket AS bucket
       SET refilled_at = GREATEST(bucket.refilled_at, %(now)s::timestamptz) + %(taken)s * interval '1 microsecond'
      FROM found, durability
     WHERE bucket.scope = 'requests:' || found.tenant_id AND found.digest = %(digest)s
       AND COALESCE(found.expires_at > %(now)s, true) AND COALESCE(found.revoked_at > %(now)s, true)
       AND COALESCE(found.requests, '') = ''
       AND bucket.refilled_at <= %(now)s::timestamptz + %(free)s * interval '1 microsecond'
    RETURNING bucket.refilled_at
)
SELECT found.*, statement_timestamp(), (SELECT refilled_at FROM counted) FROM found
