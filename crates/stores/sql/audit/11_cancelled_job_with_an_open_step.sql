-- Nothing of a cancelled job is open. A retried attempt stays FAILED_RETRY; its successor speaks for it.
SELECT j.job_id, 'step ' || a.step_index || ', branch ' || a.branch || ', turn ' || a.turn || ', attempt '
    || a.attempt_no || ', state ' || a.state AS detail
FROM job j JOIN attempt a ON a.job_id = j.job_id
WHERE j.state = 6 AND a.state IN (0, 1, 2, 3, 5)
    AND NOT EXISTS (SELECT 1 FROM attempt b WHERE b.job_id = a.job_id
        AND b.step_index = a.step_index AND b.branch = a.branch AND b.turn = a.turn
        AND b.attempt_no > a.attempt_no)
