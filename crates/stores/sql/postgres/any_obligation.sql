-- An open obligation of a graph: one that waits if there is one, then one whose directive is not published, which
-- can be ended at once too, then one that runs; and the oldest row if there is none at all.
SELECT {held}, sprag.now_ms(NULL) FROM sprag.job j JOIN sprag.attempt a ON a.job_id = j.job_id
WHERE j.job_id = $1::uuid
ORDER BY CASE
    WHEN a.ending IS NULL AND a.state IN (0, 5) AND a.owner IS NULL
        AND (a.ready_at IS NOT NULL OR a.timer_at IS NOT NULL OR a.countdown > 0
            OR a.waits_for IS NOT NULL) THEN 0
    WHEN a.ending IS NULL AND a.state = 1 THEN 1
    WHEN a.ending IS NULL AND a.state IN (2, 3) THEN 2
    WHEN a.owner IS NOT NULL THEN 3 ELSE 4 END,
    a.step_index, a.branch, a.turn, a.attempt_no
LIMIT 1
