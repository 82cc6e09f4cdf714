-- Tenants with a limit.
SELECT tenant_id, max_open, open_jobs FROM tenant ORDER BY tenant_id
