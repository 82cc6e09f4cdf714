-- Signals go to waits.
UPDATE sprag.signal s SET step_index = i.step_index, branch = i.branch, turn = i.turn
FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::integer[])
    AS i (job_id, n, step_index, branch, turn)
WHERE s.job_id = i.job_id AND s.n = i.n AND s.step_index IS NULL
