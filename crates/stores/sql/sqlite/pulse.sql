-- A running attempt shows a sign of life. Not a transition: the row keeps its version.
UPDATE attempt SET lease_expires_at = ?8, progress = coalesce(?9, progress)
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
    AND +owner = ?6 AND lease_id = ?7 AND ending IS NULL
