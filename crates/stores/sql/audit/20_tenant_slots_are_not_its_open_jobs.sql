-- A tenant with a limit has one slot taken per open job; child jobs take none.
SELECT NULL AS job_id, 'tenant ' || t.tenant_id || ', slots ' || t.open_jobs || ', open ' || count(j.job_id) AS detail
FROM tenant t LEFT JOIN job j ON j.tenant_id = t.tenant_id AND j.completed_at IS NULL
    AND substr(j.dedup_key, 1, 2) <> 'c:'
GROUP BY t.tenant_id, t.open_jobs HAVING t.open_jobs <> count(j.job_id)
