-- A terminal job has no open obligation, an open one has at least one.
SELECT job_id, 'state ' || state || ', semaphore ' || semaphore AS detail
FROM job WHERE (semaphore = 0) <> (state >= 4)
