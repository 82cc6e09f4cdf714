-- One that may start leaves the line: into the queue, or to wait for its own time if a rate has given it one.
UPDATE attempt SET admitted_at = ?6, ready_at = iif(?6 > ?7, NULL, ready_at), timer_at = iif(?6 > ?7, ?6, NULL),
    version = version + 1, updated_at = ?7
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
