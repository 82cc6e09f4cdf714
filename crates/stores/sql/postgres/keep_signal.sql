-- Keeps a signal, makes the wait that it goes to claimable, and tells of it. The job's row is locked.
WITH kept AS (
    INSERT INTO sprag.signal (job_id, n, signal_id, name, decision, content, payload, said_by, reason,
        received_at, step_index, branch, turn)
    VALUES ($1::uuid, $2::integer, $3::text, $4::text, $5::smallint, $6::bytea, $7::text, $8::text,
        $9::text, $10::bigint, $11::integer, $12::bigint, $13::integer)
), woken AS (
    UPDATE sprag.attempt SET ready_at = $10 - priority * $15::bigint, timer_at = NULL,
        version = version + 1, updated_at = $10
    WHERE job_id = $1 AND step_index = $11 AND branch = $12 AND turn = $13 AND attempt_no = $14::integer
), told AS (
    UPDATE sprag.job SET version = version + 1, events = events + 1, updated_at = $10
    WHERE job_id = $1 RETURNING events
)
INSERT INTO sprag.event (job_id, n, at, changes, note)
SELECT $1, events, $10, 'signal ', $16::text FROM told
