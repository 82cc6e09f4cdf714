-- As end_attempt, if nothing changes that an index holds: then none is written. With `+` the row is found by its key,
-- not by way of the index of owners.
UPDATE OR FAIL attempt SET ending = ?8, guid = ?9, content = ?10, ledger = ?11, output = ?13,
    error_code = ?14, error_message = ?15, output_ref = ?17, version = version + 1, updated_at = ?16
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no BETWEEN ?5 AND ?5
    AND version = ?6 AND lease_id IS ?7 AND ending IS NULL AND ledger / 100000000000 % 10 = 1
    AND +owner = ?12 AND timer_at IS NULL
