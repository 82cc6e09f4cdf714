-- Whoever closed the job has run its completion tasks, or an engine still holds the message, be it a dead one: what that
-- has left is taken over.
SELECT a.job_id, 'step ' || a.step_index || ', branch ' || a.branch || ', turn ' || a.turn || ', attempt '
    || a.attempt_no || ', guid ' || a.guid AS detail
FROM attempt a
WHERE a.guid / 100000000000 % 10 = 1 AND a.guid / 100000000 % 10 = 0
    AND NOT EXISTS (SELECT 1 FROM engine e WHERE e.engine_no = a.owner)
