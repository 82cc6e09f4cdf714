-- A request is born `created` with its first event.
INSERT INTO request (request_id, status, version, run_no, events, created_at, updated_at, tenant_id,
    request_type, request_key, content_hash, plan_revision, requirement, inputs, envelope)
VALUES (?1, 0, 1, 0, 1, ?2, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (tenant_id, request_type, request_key) DO NOTHING
