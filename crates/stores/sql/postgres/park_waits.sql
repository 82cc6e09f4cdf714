-- Waits whose signal has not come are nobody's until it does, or until their time is over.
UPDATE sprag.attempt a SET owner = NULL, waits_for = i.signal, waits_until = i.until, timer_at = i.until,
    version = a.version + 1, updated_at = $9::bigint
FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::integer[], $5::integer[], $6::bigint[],
    $7::text[], $8::bigint[]) AS i (job_id, step_index, branch, turn, attempt_no, version, signal, until)
WHERE a.job_id = i.job_id AND a.step_index = i.step_index AND a.branch = i.branch AND a.turn = i.turn
    AND a.attempt_no = i.attempt_no AND a.version = i.version
