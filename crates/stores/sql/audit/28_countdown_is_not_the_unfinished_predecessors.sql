-- The rows of graphs that go on, each place once, job by job: how far it is parked, whether it is over, and whether it
-- has begun or could. What the countdowns should be follows from the protocol, which is compiled for it.
SELECT j.job_id, j.protocol_id, a.step_index, a.branch, a.turn, max(a.countdown) AS countdown,
    max(CASE WHEN a.state IN (4, 6, 8) THEN 1 ELSE 0 END) AS is_over,
    max(CASE WHEN a.state = 0 AND a.ledger < 1000000000000 AND a.owner IS NULL AND a.ready_at IS NULL
        AND a.timer_at IS NULL THEN 0 ELSE 1 END) AS has_begun
FROM job j JOIN attempt a ON a.job_id = j.job_id
WHERE j.is_graph = 1 AND j.state < 3 AND j.verdict IS NULL
GROUP BY j.job_id, a.step_index, a.branch, a.turn
ORDER BY j.job_id, a.step_index, a.branch, a.turn
