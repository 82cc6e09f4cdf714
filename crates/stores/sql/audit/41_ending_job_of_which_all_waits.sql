-- Of a job that is being cancelled, or whose end is certain, an obligation has its time, is with an engine, or is in the
-- queue of what engines end by themselves: nobody need serve another service any more. The first Step 2 from then on
-- closes all that waits, and here nothing leads to one.
SELECT j.job_id, 'state ' || j.state || ', verdict ' || coalesce(CAST(j.verdict AS text), 'none') || ', waiting '
    || count(*) AS detail
FROM job j JOIN attempt a ON a.job_id = j.job_id
    AND (a.ready_at IS NOT NULL OR a.timer_at IS NOT NULL OR a.owner IS NOT NULL
        OR a.countdown > 0 OR a.ledger >= 1000000000000)
    AND coalesce(a.guid / 1000000000 % 10, 0) = 0 AND a.state <> 7
WHERE j.state = 3 OR (j.state < 3 AND j.verdict IS NOT NULL)
GROUP BY j.job_id, j.state, j.verdict
HAVING max(CASE WHEN a.timer_at IS NOT NULL OR a.owner IS NOT NULL
    OR (a.ready_at IS NOT NULL AND a.service = 'sprag.control') THEN 1 ELSE 0 END) = 0
