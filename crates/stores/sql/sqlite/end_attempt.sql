-- A message enters Leg2: the first one is the only one. Storing it closes the lease.
UPDATE OR FAIL attempt SET ending = ?8, guid = ?9, content = ?10, ledger = ?11, owner = ?12, output = ?13,
    error_code = ?14, error_message = ?15, output_ref = ?17, timer_at = NULL, version = version + 1, updated_at = ?16
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no BETWEEN ?5 AND ?5
    AND version = ?6 AND lease_id IS ?7 AND ending IS NULL AND ledger / 100000000000 % 10 = 1
