-- Step 3 belongs to the message that closed the job.
SELECT job_id, 'step ' || step_index || ', branch ' || branch || ', turn ' || turn || ', attempt ' || attempt_no
    || ', guid ' || guid AS detail FROM attempt
WHERE guid / 100000000 % 10 = 1 AND guid / 100000000000 % 10 = 0
