-- The waits of a slice that this engine has taken up, locked.
SELECT i.n, a.waits_until
FROM unnest($2::uuid[], $3::integer[], $4::bigint[], $5::integer[], $6::integer[], $7::bigint[])
        WITH ORDINALITY AS i (job_id, step_index, branch, turn, attempt_no, version, n)
    JOIN sprag.attempt a ON a.job_id = i.job_id AND a.step_index = i.step_index
        AND a.branch = i.branch AND a.turn = i.turn AND a.attempt_no = i.attempt_no
WHERE i.step_index >= 0 AND i.attempt_no > 0 AND i.turn >= 0 AND a.version = i.version
    AND a.owner = $1::bigint AND a.lease_id IS NULL AND a.ending IS NULL
ORDER BY i.n FOR UPDATE OF a
