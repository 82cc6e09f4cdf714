-- A dedup key is one job's for ever, whether that is there or was deleted by retention. Told is whoever came later.
SELECT job_id, 'key ' || dedup_key AS detail
FROM (SELECT job_id, dedup_key, row_number() OVER (PARTITION BY tenant_id, dedup_key ORDER BY job_id) AS n
    FROM (SELECT job_id, tenant_id, dedup_key FROM job
        UNION ALL SELECT job_id, tenant_id, dedup_key FROM retired) AS known) AS numbered
WHERE n > 1
