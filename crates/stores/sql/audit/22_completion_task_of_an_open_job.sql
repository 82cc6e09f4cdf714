-- Completion tasks are recorded by the closing commit.
SELECT c.job_id, 'task ' || c.task AS detail
FROM completion c LEFT JOIN job j ON j.job_id = c.job_id WHERE j.completed_at IS NULL
