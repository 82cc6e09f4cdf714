-- An open attempt waits in the queue, for a timer, for a signal, or with an engine: whoever beats takes over from one
-- that is silent, and from a dead one until nothing of it is left.
SELECT a.job_id, 'step ' || a.step_index || ', branch ' || a.branch || ', turn ' || a.turn || ', attempt '
    || a.attempt_no || ', state ' || a.state AS detail
FROM attempt a
WHERE a.ledger >= 1000000000000 AND coalesce(a.guid / 1000000000 % 10, 0) = 0 AND a.state <> 7
    AND a.ready_at IS NULL AND a.timer_at IS NULL AND (a.waits_for IS NULL OR a.owner IS NOT NULL
        OR a.state NOT IN (0, 5))
    AND NOT EXISTS (SELECT 1 FROM engine e WHERE e.engine_no = a.owner)
