-- What stays of a job that is deleted.
INSERT INTO retired (era, tenant_id, dedup_key, idempotency_hash, job_id, state, retired_at)
SELECT era, tenant_id, dedup_key, idempotency_hash, job_id, state, ?2 FROM job WHERE job_id = ?1
