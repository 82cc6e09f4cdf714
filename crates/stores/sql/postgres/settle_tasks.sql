-- How deliveries went, of those that are still this engine's.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
)
UPDATE sprag.completion c SET owner = NULL, due_at = i.now + i.delay_ms,
    delivered_at = CASE WHEN i.delay_ms IS NULL THEN i.now END, error_message = i.message
FROM (SELECT alive.now, u.* FROM alive, unnest($3::uuid[], $4::text[], $5::integer[], $6::bigint[],
        $7::text[]) AS u (job_id, task, delivery, delay_ms, message) WHERE u.delivery > 0) AS i
WHERE c.job_id = i.job_id AND c.task = i.task AND c.deliveries = i.delivery AND c.owner = $1
    AND c.delivered_at IS NULL
RETURNING 1
