-- Gives jobs that were copied the position of their newest event.
UPDATE job SET last_event = e.pos
FROM (SELECT job_id, pos, max(n) FROM event GROUP BY job_id) e
WHERE job.job_id = e.job_id AND job.last_event <> e.pos
