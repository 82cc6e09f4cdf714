-- The rows of a job as they are, its own state first and whether its end is certain, and all that its events tell,
-- to be folded and compared.
SELECT j.job_id, j.state || CASE WHEN j.verdict IS NULL THEN ' 0' ELSE ' 1' END
    || coalesce((SELECT string_agg(',' || a.step_index || '/' || a.branch || '/' || a.turn || '/'
        || a.attempt_no || ' ' || a.state || ' ' || coalesce(CAST(a.outbox AS text), '-'), '')
    FROM attempt a WHERE a.job_id = j.job_id), '') AS found, e.told
FROM job j LEFT JOIN (SELECT job_id, string_agg(coalesce(step_index, -1) || '/' || branch || '/' || turn || '/'
        || coalesce(attempt_no, 0) || ' ' || changes, ',' ORDER BY n) AS told
    FROM event GROUP BY job_id) e ON e.job_id = j.job_id
