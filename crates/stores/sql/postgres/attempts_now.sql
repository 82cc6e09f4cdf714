-- The attempts of a slice as they are, for writes whose guard did not hold.
SELECT a.job_id, a.step_index, a.branch, a.turn, a.attempt_no, a.version, a.lease_id, a.guid, a.content,
    a.lease_expires_at
FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::integer[], $5::integer[])
    AS i (job_id, step_index, branch, turn, attempt_no)
    JOIN sprag.attempt a ON a.job_id = i.job_id AND a.step_index = i.step_index
        AND a.branch = i.branch AND a.turn = i.turn AND a.attempt_no = i.attempt_no
WHERE i.step_index >= 0 AND i.attempt_no > 0 AND i.turn >= 0
