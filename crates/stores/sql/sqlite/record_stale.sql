-- The last callback of its kind that changed nothing at this step, and how many there were.
INSERT INTO stale (job_id, step_index, branch, turn, attempt_no, callback, code, lease_id, times, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9)
ON CONFLICT DO UPDATE SET attempt_no = excluded.attempt_no, lease_id = excluded.lease_id,
    times = times + 1, at = excluded.at
