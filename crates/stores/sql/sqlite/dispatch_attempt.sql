-- The work of Leg1, with the digit that proves it, if Leg1 is not done yet.
UPDATE OR FAIL attempt SET state = ?7, ledger = ?8, lease_id = ?9, lease_expires_at = ?10, outbox = ?11,
    sent_at = ?12, acked_at = ?13, timer_at = ?14, owner = ?15, claim_id = ?17, version = version + 1,
    updated_at = ?16
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no BETWEEN ?5 AND ?5
    AND version = ?6 AND ledger / 100000000000 % 10 = 0 AND ledger >= 1000000000000
