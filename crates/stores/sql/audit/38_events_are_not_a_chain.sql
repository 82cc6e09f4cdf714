-- Each event has the position of the one before it of the same job, and a job that of its newest one.
SELECT job_id, 'event ' || n || ' stands behind ' || coalesce(before, 0) || ', not ' || coalesce(behind, 0) AS detail
FROM (SELECT job_id, n, before, lag(pos) OVER (PARTITION BY job_id ORDER BY n) AS behind FROM event)
WHERE before IS NOT behind
UNION ALL
SELECT j.job_id, 'last event ' || j.last_event || ', not ' || coalesce(e.pos, 0) AS detail
FROM job j LEFT JOIN (SELECT job_id, pos, max(n) FROM event GROUP BY job_id) e ON e.job_id = j.job_id
WHERE j.last_event <> coalesce(e.pos, 0)
