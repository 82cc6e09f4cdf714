-- A step that started has ended by a message whose Step 1 is committed; one that never did may be cancelled.
SELECT job_id, 'step ' || step_index || ', branch ' || branch || ', turn ' || turn || ', attempt ' || attempt_no
    || ', state ' || state AS detail FROM attempt
WHERE state IN (4, 6, 8) AND coalesce(guid / 10000000000 % 10, 0) = 0
