-- Engines that are dead since long and of which everything is taken over.
DELETE FROM engine WHERE engine_no IN (
    SELECT e.engine_no FROM engine e
    WHERE e.dead = 1 AND e.beat_at < ?1 - ?2 AND NOT EXISTS (SELECT 1 FROM attempt WHERE owner = e.engine_no)
    ORDER BY e.engine_no LIMIT ?3)
