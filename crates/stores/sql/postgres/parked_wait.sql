-- The first wait that is parked for a signal of this name. Under the job's lock, so nobody parks one meanwhile.
-- Whoever has locked it may leave it as it is, and may itself wait for the job: so nobody is passed over or
-- waited for here, and the signal begins again.
SELECT job_id, step_index, branch, turn, attempt_no FROM sprag.attempt
WHERE job_id = $1::uuid AND waits_for = $2::text AND state IN (0, 5) AND owner IS NULL
    AND ready_at IS NULL AND ending IS NULL
ORDER BY step_index, branch, turn LIMIT 1 FOR UPDATE NOWAIT
