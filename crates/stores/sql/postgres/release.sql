-- Activations that their engine cannot use go back to the queue; their next claim enters them again. One of a job that is
-- ending is there to be ended, whoever serves its service. Whether it is, is read under the job's lock: a cancel that came
-- while the engine had the activation has left it to the engine.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), held AS MATERIALIZED (
    SELECT alive.now, a.job_id, a.step_index, a.branch, a.turn, a.attempt_no, a.job_id AS of_job
    FROM alive, unnest($3::uuid[], $4::integer[], $5::bigint[], $6::integer[], $7::integer[], $8::bigint[])
            AS u (job_id, step_index, branch, turn, attempt_no, version)
        JOIN sprag.attempt a ON a.job_id = u.job_id AND a.step_index = u.step_index AND a.branch = u.branch
            AND a.turn = u.turn AND a.attempt_no = u.attempt_no
    WHERE u.step_index >= 0 AND u.attempt_no > 0 AND u.turn >= 0 AND a.version = u.version
        AND a.owner = $1 AND a.lease_id IS NULL AND a.ending IS NULL
    ORDER BY a.job_id, a.step_index, a.branch, a.turn, a.attempt_no FOR UPDATE OF a
), freed AS MATERIALIZED (
    SELECT h.*, j.state = $10::smallint OR j.verdict IS NOT NULL AS is_ending
    FROM held h JOIN sprag.job j ON j.job_id = h.of_job
    ORDER BY j.job_id FOR SHARE OF j
)
UPDATE sprag.attempt a SET owner = NULL, ready_at = f.now - a.priority * $9::bigint,
    service = CASE WHEN f.is_ending THEN $11::text ELSE a.service END,
    version = a.version + 1, updated_at = f.now
FROM freed f
WHERE a.job_id = f.job_id AND a.step_index = f.step_index AND a.branch = f.branch AND a.turn = f.turn
    AND a.attempt_no = f.attempt_no
RETURNING 1
