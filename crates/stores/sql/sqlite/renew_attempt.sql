-- An open attempt moves along and lives by its timer, which ends at ?10. Nobody but the publisher (?13) may own it.
UPDATE attempt SET state = ?8, outbox = coalesce(?9, outbox), sent_at = iif(?9 IS NULL, sent_at, ?12),
    acked_at = iif(?11, ?12, acked_at),
    lease_expires_at = iif(?9 IS NULL, ?10, lease_expires_at),
    timer_at = ?10, owner = NULL, progress = coalesce(?14, progress), version = version + 1,
    updated_at = ?12
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
    AND version = ?6 AND lease_id = ?7 AND ending IS NULL AND owner IS ?13
