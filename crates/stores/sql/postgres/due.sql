-- Activations whose time has come join the queue. Says what time it is, how many they were, whether anything
-- else is due but directives that wait to be published (state 1), and when the next timer ends.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), picked AS MATERIALIZED (
    SELECT a.job_id, a.step_index, a.branch, a.turn, a.attempt_no FROM sprag.attempt a
    WHERE a.timer_at <= (SELECT now FROM alive) AND a.state IN (0, 5)
    ORDER BY a.timer_at, a.job_id LIMIT $4::bigint FOR UPDATE SKIP LOCKED
), promoted AS (
    UPDATE sprag.attempt a SET ready_at = a.timer_at - a.priority * $3::bigint, timer_at = NULL,
        version = a.version + 1
    FROM picked p
    WHERE a.job_id = p.job_id AND a.step_index = p.step_index AND a.branch = p.branch
        AND a.turn = p.turn AND a.attempt_no = p.attempt_no
    RETURNING 1
)
SELECT alive.now, (SELECT count(*) FROM promoted),
    EXISTS (SELECT 1 FROM sprag.attempt d WHERE d.timer_at <= alive.now AND d.state NOT IN (0, 1, 5)),
    (SELECT n.timer_at FROM sprag.attempt n WHERE n.timer_at > alive.now ORDER BY n.timer_at LIMIT 1)
FROM alive
