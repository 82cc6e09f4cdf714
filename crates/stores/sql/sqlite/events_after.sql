-- The events of a job behind a number, at most so many. They are found backwards, from the first milestone that is not
-- before the end of the page, or else from the newest event. Numbers fall on the way, so a damaged chain ends, too.
WITH RECURSIVE found (before, n, at, step_index, attempt_no, changes, note, branch, turn) AS (
    SELECT before, n, at, step_index, attempt_no, changes, note, branch, turn FROM event WHERE n > ?2 AND pos = coalesce(
        (SELECT pos FROM event WHERE job_id = ?1 AND n >= ?2 + ?3 AND n % 64 = 0 ORDER BY n LIMIT 1),
        (SELECT last_event FROM job WHERE job_id = ?1))
    UNION ALL
    SELECT e.before, e.n, e.at, e.step_index, e.attempt_no, e.changes, e.note, e.branch, e.turn
    FROM found f CROSS JOIN event e ON e.pos = f.before
    WHERE e.n > ?2 AND e.n < f.n
)
SELECT n, at, step_index, attempt_no, changes, note, branch, turn FROM found ORDER BY n LIMIT ?3
