-- Engines that are dead since long and of which everything is taken over. Whoever wakes up after that finds no row of
-- its own, and is fenced off as before.
DELETE FROM sprag.engine WHERE engine_no IN (
    SELECT e.engine_no FROM sprag.engine e
    WHERE e.dead = 1 AND e.beat_at < sprag.now_ms($1::bigint) - $2::bigint
        AND NOT EXISTS (SELECT 1 FROM sprag.attempt a WHERE a.owner = e.engine_no)
    ORDER BY e.engine_no LIMIT $3::bigint FOR UPDATE SKIP LOCKED)
