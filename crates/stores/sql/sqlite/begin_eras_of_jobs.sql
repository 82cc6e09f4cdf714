-- Eras of so many keys each, of jobs that came without.
UPDATE job SET era = e.era
FROM (SELECT job_id, (row_number() OVER (ORDER BY job_id) - 1) / ?1 AS era FROM job) AS e
WHERE e.job_id = job.job_id
