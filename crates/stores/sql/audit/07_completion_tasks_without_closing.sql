-- Step 3 belongs to the message that closed the job.
SELECT job_id, 'guid ' || guid AS detail FROM attempt
WHERE guid / 100000000 % 10 = 1 AND guid / 100000000000 % 10 = 0
