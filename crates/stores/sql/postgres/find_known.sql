-- Who has these dedup keys.
SELECT i.n::integer, j.job_id, j.idempotency_hash, j.state
FROM unnest($1::integer[], $2::text[], $3::text[]) AS i (n, tenant_id, dedup_key)
    JOIN sprag.job j ON j.tenant_id = i.tenant_id AND j.dedup_key = i.dedup_key
