-- A row of the inbox waits, or has become a job, or says why not.
SELECT i.job_id, 'inbox row ' || i.inbox_id AS detail FROM inbox i
WHERE (CASE WHEN i.taken_at IS NULL THEN 1 ELSE 0 END) + (CASE WHEN i.job_id IS NULL THEN 0 ELSE 1 END)
    + (CASE WHEN i.error_code IS NULL THEN 0 ELSE 1 END) <> 1
