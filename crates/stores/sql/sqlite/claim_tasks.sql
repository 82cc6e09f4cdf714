-- Completion tasks that are due are held for a while.
UPDATE completion SET deliveries = deliveries + 1, owner = ?4, due_at = ?5
WHERE (job_id, task) IN (SELECT job_id, task FROM completion
    WHERE task = ?1 AND due_at <= ?2 ORDER BY due_at, job_id LIMIT ?3)
RETURNING job_id, deliveries
