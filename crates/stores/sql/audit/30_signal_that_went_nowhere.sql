-- A signal has gone to a step of its job; signals of a job have dense numbers.
SELECT s.job_id, 'signal ' || s.n || ' has gone to step ' || s.step_index || ', which is not there' AS detail
FROM signal s LEFT JOIN attempt a ON a.job_id = s.job_id AND a.step_index = s.step_index
    AND a.branch = s.branch AND a.turn = s.turn AND a.attempt_no = 1
WHERE s.step_index IS NOT NULL AND a.job_id IS NULL
UNION ALL
SELECT job_id, count(*) || ' signals, the last is ' || max(n) AS detail FROM signal
GROUP BY job_id HAVING count(*) <> max(n)
