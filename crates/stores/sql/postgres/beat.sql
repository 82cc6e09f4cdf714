-- A sign of life. Says which version is the oldest that the store still admits, whether another engine lives,
-- whether an envelope waits in the inbox, and who has been silent for `$3`, if that is asked for: engines that
-- count as alive, and dead ones of which not everything is taken over. An engine that has left (0) beats no more, also if
-- a beat of it was still on its way.
UPDATE sprag.engine e SET beat_at = sprag.now_ms($2::bigint)
WHERE e.engine_no = $1::bigint AND e.dead = 0 AND e.beat_at > 0
RETURNING (SELECT value FROM sprag.meta WHERE key = 'oldest_compatible'),
    EXISTS (SELECT 1 FROM sprag.engine o WHERE o.engine_no <> $1 AND o.dead = 0),
    EXISTS (SELECT 1 FROM sprag.inbox i WHERE i.taken_at IS NULL),
    ARRAY (SELECT o.engine_no FROM sprag.engine o
        WHERE o.engine_no <> $1 AND $3::bigint IS NOT NULL
            AND CASE WHEN o.dead = 0 THEN o.beat_at <= e.beat_at - $3
                ELSE EXISTS (SELECT 1 FROM sprag.attempt a WHERE a.owner = o.engine_no) END
        ORDER BY o.engine_no)
