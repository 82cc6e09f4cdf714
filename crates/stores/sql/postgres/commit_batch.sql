-- A commit of a batch. The attempt is locked first, as everywhere; the cursor and the fence are compared in
-- the row that is updated. Without seqs there is no journal row; with an ending the attempt ends.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), held AS MATERIALIZED (
    SELECT alive.now, a.job_id, a.step_index, a.branch, a.turn, a.attempt_no
    FROM alive, sprag.attempt a
    WHERE a.job_id = $3::uuid AND a.step_index = $4::integer AND a.branch = $5::bigint
        AND a.turn = $6::integer AND a.attempt_no = $7::integer AND a.lease_id = $8::bigint
        AND a.ending IS NULL
        AND ($26::smallint IS NULL
            OR a.version = $25::bigint AND a.ledger / 100000000000 % 10 = 1)
    FOR UPDATE OF a
), moved AS (
    UPDATE sprag.batch b SET cursor = $10::bigint, success = $11::bigint, skip = $12::bigint,
        fail = $13::bigint, cancel = $14::bigint, first_failed = $15::bigint, total = $16::bigint,
        out_bytes = $17::bigint, outcome_hash = $18::bigint, input_hash = $19::bytea, updated_at = h.now
    FROM held h
    WHERE b.job_id = h.job_id AND b.step_index = h.step_index AND b.branch = h.branch
        AND b.turn = h.turn AND b.attempt_no = h.attempt_no AND b.lease_id = $8
        AND b.cursor = $9::bigint
    RETURNING h.now, h.job_id, h.step_index, h.branch, h.turn, h.attempt_no
), journalled AS (
    INSERT INTO sprag.batch_journal (job_id, step_index, branch, turn, first_seq, seqs, at, outcomes,
        notes, outputs)
    SELECT job_id, step_index, branch, turn, $9, $20::bigint, now, $21::text, $22::text, $23::text
    FROM moved WHERE $20 IS NOT NULL
), ended AS (
    UPDATE sprag.attempt a SET ending = $26, guid = $27::bigint, content = $28::bytea,
        ledger = $29::bigint, owner = $1, output = $30::text, error_code = $31::text,
        error_message = $32::text, timer_at = NULL, version = a.version + 1, updated_at = m.now
    FROM moved m
    WHERE $26 IS NOT NULL AND a.job_id = m.job_id AND a.step_index = m.step_index
        AND a.branch = m.branch AND a.turn = m.turn AND a.attempt_no = m.attempt_no
)
SELECT EXISTS (SELECT 1 FROM sprag.job j WHERE j.job_id = moved.job_id AND j.state = $24::smallint)
FROM moved
