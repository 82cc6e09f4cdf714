-- What is counted per state is what is there.
SELECT NULL AS job_id, 'state ' || c.state || ', counted ' || sum(c.counted) || ', jobs ' || sum(c.jobs) AS detail
FROM (SELECT state, jobs AS counted, 0 AS jobs FROM job_count
    UNION ALL
    SELECT state, 0, count(*) FROM job GROUP BY state) AS c
GROUP BY c.state HAVING sum(c.counted) <> sum(c.jobs)
