-- A sequential job has one step in progress.
SELECT a.job_id, 'in progress ' || string_agg('step ' || a.step_index || ' attempt ' || a.attempt_no, ', ') AS detail
FROM attempt a JOIN job j ON j.job_id = a.job_id
WHERE a.state = 3 AND j.is_graph = 0 GROUP BY a.job_id HAVING count(*) > 1
