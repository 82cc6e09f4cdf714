-- A tenant gets a limit: what is open counts from the start.
INSERT INTO tenant (tenant_id, max_open, open_jobs)
SELECT ?1, ?2, count(*) FROM job
WHERE tenant_id = ?1 AND completed_at IS NULL AND substr(dedup_key, 1, 2) <> 'c:'
