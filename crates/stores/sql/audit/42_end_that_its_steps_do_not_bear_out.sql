-- Every step of a job that has succeeded has succeeded; in a graph it may be skipped, or have failed where that is
-- tolerated, which is for its protocol to say. A job that has failed has an attempt that failed for good.
SELECT j.job_id, 'step ' || a.step_index || ', branch ' || a.branch || ', turn ' || a.turn || ', attempt '
    || a.attempt_no || ', state ' || a.state AS detail,
    CASE WHEN j.is_graph = 1 AND a.state = 6 THEN j.protocol_id END AS protocol_id, a.step_index
FROM job j JOIN attempt a ON a.job_id = j.job_id
WHERE j.state = 4 AND a.state <> 4 AND NOT (j.is_graph = 1 AND a.state = 8)
    AND NOT EXISTS (SELECT 1 FROM attempt b WHERE b.job_id = a.job_id
        AND b.step_index = a.step_index AND b.branch = a.branch AND b.turn = a.turn
        AND b.attempt_no > a.attempt_no)
UNION ALL
SELECT j.job_id, 'steps ' || j.steps || ', succeeded ' || count(DISTINCT a.step_index), NULL, NULL
FROM job j LEFT JOIN attempt a ON a.job_id = j.job_id AND a.state = 4
WHERE j.state = 4 AND j.is_graph = 0
GROUP BY j.job_id, j.steps HAVING count(DISTINCT a.step_index) <> j.steps
UNION ALL
SELECT j.job_id, 'no attempt has failed for good', NULL, NULL
FROM job j WHERE j.state = 5 AND NOT EXISTS (SELECT 1 FROM attempt a WHERE a.job_id = j.job_id AND a.state = 6)
