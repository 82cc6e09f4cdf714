-- A sequential job has one step in progress.
SELECT job_id, count(*) || ' steps in progress' AS detail FROM attempt
WHERE state = 3 GROUP BY job_id HAVING count(*) > 1
