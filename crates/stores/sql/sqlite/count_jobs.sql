-- Adds what a transaction has done to the jobs of one state.
INSERT INTO job_count VALUES (0, ?1, ?2)
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs
