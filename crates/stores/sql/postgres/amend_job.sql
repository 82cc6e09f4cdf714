-- The job of an amended attempt, and the event that tells of it.
WITH moved AS (
    UPDATE sprag.job SET state = $2::smallint, version = version + 1, updated_at = $3::bigint,
        attempts_total = attempts_total + $9::integer, verdict = coalesce($10::smallint, verdict),
        events = events + CASE WHEN $8::text = '' THEN 0 ELSE 1 END
    WHERE job_id = $1::uuid RETURNING events
)
INSERT INTO sprag.event (job_id, n, at, step_index, branch, turn, attempt_no, changes)
SELECT $1, events, $3, $4::integer, $5::bigint, $6::integer, $7::integer, $8 FROM moved WHERE $8 <> ''
