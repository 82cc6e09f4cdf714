-- Directives whose time to be published has come pass to a publisher: the first one has them.
UPDATE attempt SET owner = ?1, timer_at = NULL, version = version + 1, updated_at = ?2
WHERE (job_id, step_index, branch, turn, attempt_no) IN (
    SELECT job_id, step_index, branch, turn, attempt_no FROM attempt
    WHERE timer_at <= ?2 AND state = 1 AND outbox = 0 AND ending IS NULL
        AND service = ?3 ORDER BY timer_at LIMIT ?4)
RETURNING job_id, step_index, branch, turn, attempt_no
