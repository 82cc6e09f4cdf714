-- A tenant gets a limit: what is open counts from the start. Jobs are locked against writes meanwhile.
INSERT INTO sprag.tenant (tenant_id, max_open, open_jobs)
SELECT $1::text, $2::integer, count(*)::integer FROM sprag.job
WHERE tenant_id = $1 AND completed_at IS NULL AND substr(dedup_key, 1, 2) <> 'c:'
ON CONFLICT (tenant_id) DO UPDATE SET max_open = EXCLUDED.max_open
