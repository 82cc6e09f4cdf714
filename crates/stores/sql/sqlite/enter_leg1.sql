-- A claimed activation enters Leg1; it leaves the queue.
UPDATE OR FAIL attempt SET ledger = ?6, owner = ?7, ready_at = NULL, version = version + 1, updated_at = ?8
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no BETWEEN ?5 AND ?5
