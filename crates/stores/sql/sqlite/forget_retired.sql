-- Dedup keys that were kept long enough.
DELETE FROM retired WHERE (era, dedup_key, tenant_id) IN
    (SELECT era, dedup_key, tenant_id FROM retired WHERE retired_at <= ?1 ORDER BY retired_at LIMIT ?2)
