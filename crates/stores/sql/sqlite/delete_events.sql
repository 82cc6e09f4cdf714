-- The events of a job, back along their chain. Numbers fall on the way, so a damaged chain ends, too.
WITH RECURSIVE found (pos, before, n) AS (
    SELECT pos, before, n FROM event WHERE pos = (SELECT last_event FROM job WHERE job_id = ?1)
    UNION ALL
    SELECT e.pos, e.before, e.n FROM found f CROSS JOIN event e ON e.pos = f.before WHERE e.n < f.n
)
DELETE FROM event WHERE pos IN (SELECT pos FROM found)
