-- Who has this dedup key: a job, or what is left of one that retention has deleted.
SELECT job_id, idempotency_hash, state FROM job WHERE tenant_id = ?1 AND dedup_key = ?2
UNION ALL
SELECT job_id, idempotency_hash, state FROM retired WHERE tenant_id = ?1 AND dedup_key = ?2
