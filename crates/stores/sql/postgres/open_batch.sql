-- An attempt that goes on takes up its batch: a new row, or the fence of an older attempt replaced.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), held AS MATERIALIZED (
    SELECT alive.now, a.* FROM alive, sprag.attempt a
    WHERE a.job_id = $3::uuid AND a.step_index = $4::integer AND a.branch = $5::bigint
        AND a.turn = $6::integer AND a.attempt_no = $7::integer AND a.lease_id = $8::bigint
        AND a.ending IS NULL
    FOR UPDATE OF a
)
INSERT INTO sprag.batch AS b (job_id, step_index, branch, turn, attempt_no, lease_id, opened, cursor, success,
    skip, fail, cancel, out_bytes, outcome_hash, input_hash, created_at, updated_at)
SELECT job_id, step_index, branch, turn, attempt_no, lease_id, 0, 0, 0, 0, 0, 0, 0, 0,
    decode(repeat('00', 32), 'hex'), now, now
FROM held
ON CONFLICT (job_id, step_index, branch, turn) DO UPDATE
    SET attempt_no = EXCLUDED.attempt_no, lease_id = EXCLUDED.lease_id, updated_at = EXCLUDED.updated_at,
        opened = b.cursor
    WHERE b.attempt_no <= EXCLUDED.attempt_no
RETURNING cursor, success, skip, fail, cancel, outcome_hash, input_hash, first_failed, out_bytes
