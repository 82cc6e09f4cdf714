-- Events are numbered from 1 without gaps. They are grouped once: not every store finds those of a job by an index.
SELECT j.job_id, 'events ' || j.events || ', rows ' || coalesce(e.told, 0) || ', last ' || coalesce(e.last, 0) AS detail
FROM job j LEFT JOIN (SELECT job_id, count(*) AS told, max(n) AS last FROM event GROUP BY job_id) e
    ON e.job_id = j.job_id
WHERE j.events <> coalesce(e.told, 0) OR j.events <> coalesce(e.last, 0)
