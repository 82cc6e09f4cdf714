-- Events are numbered from 1 without gaps.
SELECT j.job_id, 'events ' || j.events || ', rows ' || count(e.n) || ', last ' || coalesce(max(e.n), 0) AS detail
FROM job j LEFT JOIN event e ON e.job_id = j.job_id
GROUP BY j.job_id, j.events HAVING j.events <> count(e.n) OR j.events <> coalesce(max(e.n), 0)
