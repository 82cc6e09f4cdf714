-- Who has these dedup keys: a job, or what is left of one that retention has deleted.
SELECT i.n::integer, k.job_id, k.idempotency_hash, k.state
FROM unnest($1::integer[], $2::text[], $3::text[]) AS i (n, tenant_id, dedup_key), LATERAL (
    SELECT j.job_id, j.idempotency_hash, j.state FROM sprag.job j
    WHERE j.tenant_id = i.tenant_id AND j.dedup_key = i.dedup_key
    UNION ALL
    SELECT r.job_id, r.idempotency_hash, r.state FROM sprag.retired r
    WHERE r.tenant_id = i.tenant_id AND r.dedup_key = i.dedup_key) AS k
