-- Behind the newest event of the job, which the job's row does not name yet.
INSERT INTO event (pos, job_id, before, n, at, step_index, branch, turn, attempt_no, changes)
SELECT ?8, job_id, last_event, events + 1, ?2, ?3, ?4, ?5, ?6, ?7 FROM job WHERE job_id = ?1
