-- Activations whose time has come join the queue.
UPDATE attempt SET ready_at = timer_at - priority * ?2, timer_at = NULL, version = version + 1
WHERE (job_id, step_index, branch, turn, attempt_no) IN (
    SELECT job_id, step_index, branch, turn, attempt_no FROM attempt
    WHERE timer_at <= ?1 AND state IN (0, 5) ORDER BY timer_at LIMIT ?3)
