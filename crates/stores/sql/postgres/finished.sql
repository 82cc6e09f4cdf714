-- A job after a message was finished, and whether its next step is entered for this engine.
SELECT j.state, j.version, EXISTS (SELECT 1 FROM sprag.attempt a
    WHERE a.job_id = j.job_id AND a.step_index = $2::integer AND a.branch = $3::bigint
        AND a.turn = $4::integer AND a.attempt_no = 1 AND a.lease_id IS NULL AND a.owner = $5::bigint)
FROM sprag.job j WHERE j.job_id = $1::uuid
