-- Every settled message moved the semaphore by its children less one, less what it closed besides.
SELECT j.job_id, 'initial ' || j.initial || ', deltas ' || coalesce(sum(a.children - 1 - a.closed_parked), 0)
    || ', semaphore ' || j.semaphore AS detail
FROM job j LEFT JOIN attempt a ON a.job_id = j.job_id AND a.guid / 1000000000 % 10 = 1
GROUP BY j.job_id, j.initial, j.semaphore
HAVING j.initial + coalesce(sum(a.children - 1 - a.closed_parked), 0) <> j.semaphore
