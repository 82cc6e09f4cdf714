-- A step that started has ended by a message whose Step 1 is committed; one that never did may be cancelled, and so may
-- one of a graph whose directive nobody was sent.
SELECT a.job_id, 'step ' || a.step_index || ', branch ' || a.branch || ', turn ' || a.turn || ', attempt '
    || a.attempt_no || ', state ' || a.state AS detail
FROM attempt a
WHERE coalesce(a.guid / 10000000000 % 10, 0) = 0 AND (a.state IN (4, 6, 8)
    OR a.state = 7 AND (a.lease_id IS NOT NULL OR a.ending IS NOT NULL) AND NOT (a.outbox = 2
        AND a.ending IS NULL AND (SELECT j.is_graph FROM job j WHERE j.job_id = a.job_id) = 1))
