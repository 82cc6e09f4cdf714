-- The events of all jobs after a place. One writer commits after another, so positions are the order.
SELECT e.pos, e.job_id, j.tenant_id, e.n, e.at, e.step_index, e.attempt_no, e.changes,
    e.note, e.branch, e.turn
FROM event e LEFT JOIN job j ON j.job_id = e.job_id
WHERE e.pos > ?1 ORDER BY e.pos LIMIT ?2
