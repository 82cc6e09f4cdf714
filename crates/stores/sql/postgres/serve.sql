-- Services that an engine offers itself for. Sorted, so that two engines never wait for each other in a circle.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
)
INSERT INTO sprag.served
SELECT DISTINCT service, now FROM alive, unnest($3::text[]) AS service ORDER BY service
ON CONFLICT (service) DO UPDATE SET seen_at = EXCLUDED.seen_at
RETURNING 1
