-- A stored ending closes the lease.
SELECT job_id, 'step ' || step_index || ', branch ' || branch || ', turn ' || turn || ', attempt ' || attempt_no
    || ', ending ' || ending AS detail FROM attempt
WHERE ending IS NOT NULL AND (timer_at IS NOT NULL OR ready_at IS NOT NULL)
