-- Messages enter Leg2: the first one of an attempt is the only one. Storing it closes the lease. What most messages of a
-- slice have in common comes once for each kind, and is read at `kind`. With `$19` each that has entered is marked with
-- this number in the session, for `finish.sql`, which follows.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
)
UPDATE sprag.attempt a SET ending = i.ending, guid = i.guid, content = i.content, ledger = i.ledger,
    owner = $1, output = i.output, error_code = i.error_code, error_message = i.error_message,
    output_ref = i.output_ref, timer_at = NULL, version = a.version + 1, updated_at = i.now
FROM (SELECT alive.now, u.*, ($13::smallint[])[u.kind] AS ending, ($14::bigint[])[u.kind] AS guid,
        ($15::bigint[])[u.kind] AS ledger, ($16::text[])[u.kind] AS error_code,
        ($17::text[])[u.kind] AS error_message, ($18::text[])[u.kind] AS output_ref
    FROM alive, unnest($3::uuid[], $4::integer[], $5::bigint[], $6::integer[], $7::integer[], $8::bigint[],
        $9::bigint[], $10::bytea[], $11::text[], $12::integer[]) WITH ORDINALITY AS u (job_id, step_index, branch,
        turn, attempt_no, version, lease_id, content, output, kind, n)
    WHERE u.step_index >= 0 AND u.attempt_no > 0 AND u.turn >= 0) AS i
WHERE a.job_id = i.job_id AND a.step_index = i.step_index AND a.branch = i.branch AND a.turn = i.turn
    AND a.attempt_no = i.attempt_no AND a.version = i.version
    AND a.lease_id IS NOT DISTINCT FROM i.lease_id AND a.ending IS NULL
    AND a.ledger / 100000000000 % 10 = 1
RETURNING i.n, a.version, CASE WHEN $19::text IS NOT NULL
    THEN set_config('sprag.entered_' || i.n, $19::text, false) END
