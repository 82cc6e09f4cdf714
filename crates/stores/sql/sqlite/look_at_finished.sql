-- The next jobs, the oldest first: whether each has ended long ago with nothing left to deliver (the current run of
-- a request stays, because its status is read off it), and whether it is so young that those behind it cannot have.
-- The job of the newest event stays: the position of that event would be given again, and whoever reads the feed
-- would miss the next one.
SELECT j.job_id, coalesce(j.completed_at <= ?3, 0) AND (substr(j.dedup_key, 1, 2) <> 'r:'
        OR NOT EXISTS (SELECT 1 FROM request r WHERE r.job_id = j.job_id))
    AND j.job_id <> (SELECT e.job_id FROM event e ORDER BY e.pos DESC LIMIT 1)
    AND NOT EXISTS (SELECT 1 FROM completion c WHERE c.job_id = j.job_id AND c.due_at IS NOT NULL),
    j.created_at > ?3
FROM job j WHERE j.job_id > ?1 ORDER BY j.job_id LIMIT ?2
