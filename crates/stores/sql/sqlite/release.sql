-- An activation that its engine cannot use goes back to the queue; its next claim enters it again.
UPDATE attempt SET owner = NULL, ready_at = ?8 - priority * ?9, version = version + 1, updated_at = ?8
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
    AND version = ?6 AND +owner = ?7 AND lease_id IS NULL AND ending IS NULL
