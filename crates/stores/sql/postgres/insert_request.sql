-- A request is born `created` with its first event. One whose key is known is left out.
WITH created AS (
    INSERT INTO sprag.request (request_id, status, version, run_no, events, created_at, updated_at,
        tenant_id, request_type, request_key, content_hash, plan_revision, requirement, inputs, envelope)
    SELECT $1, 0, 1, 0, 1, clock.now, clock.now, $3, $4, $5, $6, $7, $8, $9, $10
    FROM sprag.now_ms($2::bigint) AS clock (now) WHERE sprag.expect_open()
    ON CONFLICT (tenant_id, request_type, request_key) DO NOTHING
    RETURNING request_id, created_at
)
INSERT INTO sprag.request_event (request_id, n, at, changes)
SELECT request_id, 1, created_at, 'created' FROM created
