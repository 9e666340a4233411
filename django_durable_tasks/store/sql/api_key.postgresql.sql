-- Reads an API key with its tenant, the tenant's quota and the time of the database.
SELECT api_key.id, api_key.tenant_id, api_key.name, api_key.identifier, api_key.mode, api_key.digest,
       api_key.scopes, api_key.expires_at, api_key.revoked_at, api_key.last_used_at,
       tenant.id, tenant.slug, tenant.name,
       quota.tenant_id, quota.open_tasks, quota.recurring_tasks,
       quota.runs_per_day, quota.calendars, quota.payload_bytes, quota.requests,
       statement_timestamp()
  FROM durable_tasks_api_key AS api_key
  JOIN durable_tasks_tenant AS tenant ON tenant.id = api_key.tenant_id
  LEFT JOIN durable_tasks_tenant_quota AS quota ON quota.tenant_id = tenant.id
 WHERE api_key.identifier = %(identifier)s
