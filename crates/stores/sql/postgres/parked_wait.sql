-- The first wait that is parked for a signal of this name. Under the job's lock, so nobody parks one meanwhile;
-- one that somebody else has locked is on its way back to an engine, which finds the signal by itself.
SELECT job_id, step_index, branch, turn, attempt_no FROM sprag.attempt
WHERE job_id = $1::uuid AND waits_for = $2::text AND state IN (0, 5) AND owner IS NULL
    AND ready_at IS NULL AND ending IS NULL
ORDER BY step_index, branch, turn LIMIT 1 FOR UPDATE SKIP LOCKED
