-- Step 2 builds on Step 1.
SELECT job_id, 'step ' || step_index || ', branch ' || branch || ', turn ' || turn || ', attempt ' || attempt_no
    || ', guid ' || guid AS detail FROM attempt
WHERE guid / 1000000000 % 10 = 1 AND guid / 10000000000 % 10 = 0
