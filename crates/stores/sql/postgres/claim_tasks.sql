-- Completion tasks that are due are held for a while. What another engine is claiming is passed over.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), picked AS MATERIALIZED (
    SELECT alive.now, c.job_id, c.task FROM alive, unnest($3::text[]) AS w (task),
        LATERAL (SELECT job_id, task FROM sprag.completion
            WHERE task = w.task AND due_at <= alive.now ORDER BY due_at, job_id LIMIT $4::bigint
            FOR UPDATE SKIP LOCKED) AS c
    LIMIT $4
)
UPDATE sprag.completion c SET deliveries = c.deliveries + 1, owner = $1, due_at = p.now + $5::bigint
FROM picked p WHERE c.job_id = p.job_id AND c.task = p.task
RETURNING c.job_id, c.task, c.deliveries
