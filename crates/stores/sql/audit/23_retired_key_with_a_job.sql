-- A key of a deleted job is nobody else's.
SELECT j.job_id, 'key ' || j.dedup_key AS detail
FROM retired r JOIN job j ON j.tenant_id = r.tenant_id AND j.dedup_key = r.dedup_key
