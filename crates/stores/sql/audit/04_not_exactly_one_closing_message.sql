-- A terminal job was closed by one message, an open one by none.
SELECT j.job_id, 'state ' || j.state || ', closers ' || coalesce(sum(a.guid / 100000000000 % 10), 0) AS detail
FROM job j LEFT JOIN attempt a ON a.job_id = j.job_id
GROUP BY j.job_id, j.state
HAVING coalesce(sum(a.guid / 100000000000 % 10), 0) <> CASE WHEN j.state >= 4 THEN 1 ELSE 0 END
