-- Which of these jobs are being cancelled.
SELECT job_id FROM sprag.job WHERE job_id = ANY ($1::uuid[]) AND state = $2::smallint
