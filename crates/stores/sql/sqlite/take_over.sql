-- One attempt that a dead engine held. An activation that was entered and not dispatched (?9) goes back to the queue;
-- its next claim enters it again, or ends it if its job is ending, as in release.sql. A directive that was not published
-- (?10) is anybody's to publish. The rest passes to the heir; a message is delivered again, which is one more entry of
-- Leg2 (?11); one that would run alone is entered when its turn comes.
UPDATE attempt SET version = version + 1, owner = iif(?9 OR ?10, NULL, ?6), timer_at = iif(?10, ?7, timer_at),
    ready_at = iif(?9, ?7 - priority * ?8, ready_at), updated_at = iif(?9 OR ?10, ?7, updated_at),
    ledger = ledger + ?11,
    service = iif(?9 AND (SELECT state = ?12 OR verdict IS NOT NULL FROM job WHERE job_id = ?1), ?13, service)
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
