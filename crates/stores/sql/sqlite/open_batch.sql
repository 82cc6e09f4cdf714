-- An attempt that goes on takes up its batch: a new row, or the fence of an older attempt replaced.
INSERT INTO batch (job_id, step_index, branch, turn, attempt_no, lease_id, opened, cursor, success, skip,
    fail, cancel, out_bytes, outcome_hash, input_hash, created_at, updated_at)
SELECT job_id, step_index, branch, turn, attempt_no, lease_id, 0, 0, 0, 0, 0, 0, 0, 0, zeroblob(32), ?7, ?7
FROM attempt
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
    AND lease_id = ?6 AND ending IS NULL
ON CONFLICT (job_id, step_index, branch, turn) DO UPDATE
    SET attempt_no = excluded.attempt_no, lease_id = excluded.lease_id, updated_at = excluded.updated_at,
        opened = cursor
    WHERE attempt_no <= excluded.attempt_no
RETURNING cursor, success, skip, fail, cancel, outcome_hash, input_hash, first_failed, out_bytes
