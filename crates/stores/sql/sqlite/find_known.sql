-- Who has this dedup key in this era: a job, or what is left of one that retention has deleted.
SELECT job_id, idempotency_hash, state FROM job WHERE era = ?1 AND dedup_key = ?2 AND tenant_id = ?3
UNION ALL
SELECT job_id, idempotency_hash, state FROM retired WHERE era = ?1 AND dedup_key = ?2 AND tenant_id = ?3
