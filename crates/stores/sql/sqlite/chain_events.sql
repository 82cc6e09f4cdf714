-- Gives events that were copied the position of the one before them, as the writer would have.
UPDATE event SET before = e.behind
FROM (SELECT pos, lag(pos) OVER (PARTITION BY job_id ORDER BY n) AS behind FROM event) e
WHERE event.pos = e.pos AND event.before IS NOT e.behind
