-- The rows of graphs that go on, each place once: how far it is parked, and whether it is over. What the
-- countdowns should be follows from the protocol, which is compiled for it.
SELECT j.job_id, p.definition, a.step_index, a.branch, a.turn, max(a.countdown) AS countdown,
    max(CASE WHEN a.state IN (4, 6, 8) THEN 1 ELSE 0 END) AS is_over
FROM job j JOIN protocol p ON p.protocol_id = j.protocol_id JOIN attempt a ON a.job_id = j.job_id
WHERE j.is_graph = 1 AND j.state < 3 AND j.verdict IS NULL
GROUP BY j.job_id, p.definition, a.step_index, a.branch, a.turn
