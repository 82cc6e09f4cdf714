-- Of a job that is being cancelled, or whose end is certain, an obligation is in the queue, has its time, or is with an
-- engine. The first Step 2 from then on closes all that is parked, and here nothing leads to one.
SELECT j.job_id, 'state ' || j.state || ', verdict ' || coalesce(CAST(j.verdict AS text), 'none') || ', parked '
    || count(*) AS detail
FROM job j JOIN attempt a ON a.job_id = j.job_id
    AND (a.ready_at IS NOT NULL OR a.timer_at IS NOT NULL OR a.owner IS NOT NULL
        OR a.countdown > 0 OR a.ledger >= 1000000000000)
    AND coalesce(a.guid / 1000000000 % 10, 0) = 0 AND a.state <> 7
WHERE j.state = 3 OR (j.state < 3 AND j.verdict IS NOT NULL)
GROUP BY j.job_id, j.state, j.verdict
HAVING max(CASE WHEN a.ready_at IS NULL AND a.timer_at IS NULL AND a.owner IS NULL THEN 0 ELSE 1 END) = 0
