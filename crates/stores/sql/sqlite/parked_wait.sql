-- The first wait that is parked for a signal of this name.
SELECT job_id, step_index, branch, turn, attempt_no FROM attempt INDEXED BY attempt_waits
WHERE job_id = ?1 AND waits_for = ?2 AND state IN (0, 5) AND owner IS NULL AND ready_at IS NULL
    AND ending IS NULL
ORDER BY step_index, branch, turn LIMIT 1
