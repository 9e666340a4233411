"""API keys, quotas, request rates, idempotent requests and bulk operations of tenants."""
