-- What a dead engine held. An activation that was entered and not dispatched goes back to the queue; its
-- next claim enters it again. A directive that was not published is anybody's to publish. The rest passes to the heir; a message is delivered again, which is one more
-- entry of Leg2. The owner is not indexed (it changes with every step), so this reads the whole table.
WITH held AS MATERIALIZED (
    SELECT job_id, step_index, branch, turn, attempt_no, lease_id IS NULL AND ending IS NULL AS free,
        coalesce(outbox = 0 AND ending IS NULL, false) AS unsent
    FROM sprag.attempt WHERE owner = $1::bigint
    ORDER BY job_id, step_index, branch, turn, attempt_no FOR UPDATE
)
UPDATE sprag.attempt a SET version = a.version + 1,
    owner = CASE WHEN NOT h.free AND NOT h.unsent THEN $2::bigint END,
    timer_at = CASE WHEN h.unsent THEN $3::bigint ELSE a.timer_at END,
    ready_at = CASE WHEN h.free THEN $3::bigint - a.priority * $4::bigint ELSE a.ready_at END,
    updated_at = CASE WHEN h.free OR h.unsent THEN $3::bigint ELSE a.updated_at END,
    ledger = a.ledger + CASE WHEN a.ending IS NOT NULL AND a.ledger % 100000000 < 99999999
        THEN 1 ELSE 0 END
FROM held h JOIN sprag.job j ON j.job_id = h.job_id
WHERE a.job_id = h.job_id AND a.step_index = h.step_index AND a.branch = h.branch
    AND a.turn = h.turn AND a.attempt_no = h.attempt_no
RETURNING {held}, h.free OR h.unsent
