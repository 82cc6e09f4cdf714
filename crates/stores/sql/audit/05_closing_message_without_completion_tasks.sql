-- Whoever closed the job has run its completion tasks, or somebody still holds the message.
SELECT job_id, 'step ' || step_index || ', branch ' || branch || ', turn ' || turn || ', attempt ' || attempt_no
    || ', guid ' || guid AS detail FROM attempt
WHERE guid / 100000000000 % 10 = 1 AND guid / 100000000 % 10 = 0 AND owner IS NULL
