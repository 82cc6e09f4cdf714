-- What is parked can be neither claimed nor due, and belongs to a graph that nothing has ended yet.
SELECT a.job_id, 'step ' || a.step_index || ', branch ' || a.branch || ', turn ' || a.turn || ', countdown '
    || a.countdown || ', state ' || a.state AS detail
FROM attempt a JOIN job j ON j.job_id = a.job_id
WHERE a.countdown > 0 AND (a.ready_at IS NOT NULL OR a.timer_at IS NOT NULL OR a.owner IS NOT NULL
    OR a.state <> 0 OR j.is_graph = 0 OR j.state >= 4)
