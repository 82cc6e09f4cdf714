INSERT INTO event (job_id, n, at, step_index, branch, turn, attempt_no, changes)
SELECT job_id, events, ?2, ?3, ?4, ?5, ?6, ?7 FROM job WHERE job_id = ?1
