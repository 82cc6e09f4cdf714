-- Dedup keys that were kept long enough.
DELETE FROM retired WHERE (tenant_id, dedup_key) IN
    (SELECT tenant_id, dedup_key FROM retired WHERE retired_at <= ?1 ORDER BY retired_at LIMIT ?2)
