-- Directives whose time to be published has come pass to a publisher. What another one is taking right now is
-- passed over. Their jobs are found by `of_job` as in claim.sql.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), picked AS MATERIALIZED (
    SELECT a.job_id, a.step_index, a.branch, a.turn, a.attempt_no, a.job_id AS of_job FROM sprag.attempt a
    WHERE a.timer_at <= (SELECT now FROM alive) AND a.state = 1 AND a.outbox = 0
        AND a.ending IS NULL AND a.service = ANY ($3::text[])
    ORDER BY a.timer_at, a.job_id LIMIT $4::bigint FOR UPDATE SKIP LOCKED
)
UPDATE sprag.attempt a SET owner = $1, timer_at = NULL, version = a.version + 1,
    updated_at = sprag.now_ms($2)
FROM picked p JOIN sprag.job j ON j.job_id = p.of_job
WHERE a.job_id = p.job_id AND a.step_index = p.step_index AND a.branch = p.branch
    AND a.turn = p.turn AND a.attempt_no = p.attempt_no
RETURNING {held}
