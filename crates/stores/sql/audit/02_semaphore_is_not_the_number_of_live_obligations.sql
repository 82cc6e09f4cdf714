-- The semaphore counts attempts that are parked or activated and have not settled.
SELECT j.job_id, 'semaphore ' || j.semaphore || ', live ' || count(a.job_id) AS detail
FROM job j LEFT JOIN attempt a ON a.job_id = j.job_id
    AND (a.ready_at IS NOT NULL OR a.timer_at IS NOT NULL OR a.owner IS NOT NULL
        OR a.countdown > 0 OR a.ledger >= 1000000000000)
    AND coalesce(a.guid / 1000000000 % 10, 0) = 0 AND a.state <> 7
GROUP BY j.job_id, j.semaphore HAVING j.semaphore <> count(a.job_id)
