-- An activation that its engine cannot use goes back to the queue; its next claim enters it again. One of a job that is
-- ending is there to be ended, whoever serves its service: a cancel that came while the engine had it has left it to the
-- engine.
UPDATE attempt SET owner = NULL, ready_at = ?8 - priority * ?9, version = version + 1, updated_at = ?8,
    service = iif((SELECT state = ?10 OR verdict IS NOT NULL FROM job WHERE job_id = ?1), ?11, service)
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
    AND version = ?6 AND +owner = ?7 AND lease_id IS NULL AND ending IS NULL
