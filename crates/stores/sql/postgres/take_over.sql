-- A slice of what a dead engine held. An activation that was entered and not dispatched goes back to the queue; its
-- next claim enters it again. A directive that was not published is anybody's to publish. The rest passes to the
-- heir; a message is delivered again, which is one more entry of Leg2; one that would be the
-- first to run alone ($6) is entered when its turn comes. Rows are found by their owner and locked in the order of their
-- keys, then their jobs, by `of_job` as in claim.sql: whether one is ending decides who takes up what goes back to the
-- queue, as in release.sql.
WITH mine AS MATERIALIZED (
    SELECT job_id, step_index, branch, turn, attempt_no FROM sprag.attempt
    WHERE owner = $1::bigint LIMIT $5::bigint
), held AS MATERIALIZED (
    SELECT a.job_id, a.step_index, a.branch, a.turn, a.attempt_no, a.job_id AS of_job,
        a.lease_id IS NULL AND a.ending IS NULL AS free,
        coalesce(a.outbox = 0 AND a.ending IS NULL, false) AS unsent, a.ending IS NOT NULL AS message,
        coalesce(a.ending IS NOT NULL AND a.ledger % 100000000 - a.guid % 100000000 + 2 < $6::bigint
            AND a.ledger % 100000000 < 99999999, false) AS entered
    FROM mine m JOIN sprag.attempt a ON a.job_id = m.job_id AND a.step_index = m.step_index
        AND a.branch = m.branch AND a.turn = m.turn AND a.attempt_no = m.attempt_no
    WHERE a.owner = $1
    ORDER BY a.job_id, a.step_index, a.branch, a.turn, a.attempt_no FOR UPDATE OF a
), passed AS MATERIALIZED (
    SELECT h.*, h.free AND (j.state = $7::smallint OR j.verdict IS NOT NULL) AS is_ended
    FROM held h JOIN sprag.job j ON j.job_id = h.of_job
    ORDER BY j.job_id FOR SHARE OF j
)
UPDATE sprag.attempt a SET version = a.version + 1,
    owner = CASE WHEN NOT h.free AND NOT h.unsent THEN $2::bigint END,
    timer_at = CASE WHEN h.unsent THEN $3::bigint ELSE a.timer_at END,
    service = CASE WHEN h.is_ended THEN $8::text ELSE a.service END,
    ready_at = CASE WHEN h.free THEN $3::bigint - a.priority * $4::bigint ELSE a.ready_at END,
    updated_at = CASE WHEN h.free OR h.unsent THEN $3::bigint ELSE a.updated_at END,
    ledger = a.ledger + CASE WHEN h.entered THEN 1 ELSE 0 END
FROM passed h JOIN sprag.job j ON j.job_id = h.of_job
WHERE a.job_id = h.job_id AND a.step_index = h.step_index AND a.branch = h.branch
    AND a.turn = h.turn AND a.attempt_no = h.attempt_no
RETURNING {held}, h.free OR h.unsent, h.message AND NOT h.entered
