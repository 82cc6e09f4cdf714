-- As dispatch_attempt, if nothing changes that an index holds: then none is written.
UPDATE OR FAIL attempt SET state = ?7, ledger = ?8, lease_id = ?9, lease_expires_at = ?10, outbox = ?11,
    sent_at = ?12, acked_at = ?13, version = version + 1,
    updated_at = ?16
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no BETWEEN ?5 AND ?5
    AND version = ?6 AND ledger / 100000000000 % 10 = 0 AND ledger >= 1000000000000
    AND timer_at IS ?14 AND owner IS ?15 AND claim_id IS ?17
