-- Dedup keys that were kept long enough.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), old AS MATERIALIZED (
    SELECT r.tenant_id, r.dedup_key FROM alive, LATERAL (SELECT tenant_id, dedup_key FROM sprag.retired
        WHERE retired_at <= alive.now - $3::bigint ORDER BY retired_at LIMIT $4::bigint
        FOR UPDATE SKIP LOCKED) AS r
)
DELETE FROM sprag.retired r USING old o WHERE r.tenant_id = o.tenant_id AND r.dedup_key = o.dedup_key
RETURNING 1
