-- The attempt as a decision under its lock has left it. What waits, for a timer or in the queue, has no owner.
-- One that is made ready is to be ended and not to be worked on: that is the engines' own business, whoever serves
-- its service; one that an engine has already taken out of the queue stays with it.
-- The message that ends it says why it failed; until then it is what was last in the way of its directive.
-- What is to be taken up for its end leaves the line at its gate: it will not run.
UPDATE attempt SET state = ?6, ledger = ?7, guid = ?8, ending = ?9, content = ?10, outbox = ?11,
    publish_attempts = ?12, lease_expires_at = ?13,
    acked_at = iif(?14, coalesce(acked_at, ?22), NULL),
    sent_at = iif(?15, coalesce(sent_at, ?22), NULL),
    timer_at = CASE ?16 WHEN 'keep' THEN timer_at WHEN 'at' THEN ?17 END,
    ready_at = CASE ?16 WHEN 'keep' THEN ready_at WHEN 'ready' THEN ?22 - priority * ?18 END,
    countdown = iif(?16 = 'ready', 0, countdown),
    gate = iif(?16 = 'ready' AND admitted_at IS NULL, NULL, gate),
    owner = CASE WHEN ?16 IN ('at', 'ready') THEN NULL ELSE coalesce(?23, owner) END, lease_id = ?24,
    service = iif(?16 = 'ready', ?25, service), output = coalesce(?19, output),
    error_code = iif(?23 IS NULL, coalesce(?20, error_code), ?20),
    error_message = iif(?23 IS NULL, coalesce(?21, error_message), ?21), version = version + 1, updated_at = ?22
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
    AND (?16 <> 'ready' OR owner IS NULL)
