-- An attempt that waits has a child that is open: how it ends is told in the commit that closes it.
SELECT a.job_id, 'step ' || a.step_index || ', attempt ' || a.attempt_no || ': its child is '
    || CASE WHEN c.job_id IS NULL THEN 'not there' ELSE 'in state ' || c.state END AS detail
FROM attempt a LEFT JOIN job c ON c.job_id = a.child_id
WHERE a.child_id IS NOT NULL AND a.ending IS NULL AND (c.job_id IS NULL OR c.state >= 4)
