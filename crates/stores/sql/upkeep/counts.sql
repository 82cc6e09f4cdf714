-- How many jobs are in which state.
SELECT state, CAST(sum(jobs) AS bigint) AS jobs FROM job_count GROUP BY state HAVING sum(jobs) <> 0 ORDER BY state
