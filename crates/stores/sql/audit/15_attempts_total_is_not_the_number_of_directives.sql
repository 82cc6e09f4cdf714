-- Every directive is counted once.
SELECT j.job_id, 'attempts_total ' || j.attempts_total || ', directives ' || count(a.job_id) AS detail
FROM job j LEFT JOIN attempt a ON a.job_id = j.job_id AND a.outbox IS NOT NULL
GROUP BY j.job_id, j.attempts_total HAVING j.attempts_total <> count(a.job_id)
