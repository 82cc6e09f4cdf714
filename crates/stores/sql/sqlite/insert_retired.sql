-- What stays of a job that is deleted.
INSERT INTO retired (tenant_id, dedup_key, idempotency_hash, job_id, state, retired_at)
SELECT tenant_id, dedup_key, idempotency_hash, job_id, state, ?2 FROM job WHERE job_id = ?1
