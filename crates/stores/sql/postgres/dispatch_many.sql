-- As dispatch.sql, for a slice in which several attempts share a job, which is written once. Those that share
-- one leave it where it is; a job that moves has a single attempt here, but it may stand beside them.
-- The work of Leg1 of a slice, with the digit that proves it, if Leg1 is not done yet and the job is where
-- the plan found it and is not ending. A cancel that commits between the snapshot and the job's lock makes
-- the statement start over. What most attempts of a slice have in common comes once for each kind, and is read at `kind`.
-- `$15` is 0 no timer, 1 the end of the lease, 2 the ACK deadline; who has no timer has this engine.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), entered AS (
    UPDATE sprag.attempt a SET state = i.step_to, ledger = i.ledger, lease_id = i.lease_id,
        lease_expires_at = i.now + i.lease_ms, outbox = i.outbox,
        sent_at = CASE WHEN i.outbox = 1 THEN i.now END, acked_at = CASE WHEN i.acked THEN i.now END,
        timer_at = CASE i.timer WHEN 1 THEN i.now + i.lease_ms WHEN 2 THEN i.now + i.ack_ms END,
        owner = CASE WHEN i.timer = 0 THEN $1 END, claim_id = i.claim_id, version = a.version + 1,
        updated_at = i.now
    FROM (SELECT alive.now, u.*, ($11::bigint[])[u.kind] AS lease_ms, ($12::bigint[])[u.kind] AS ack_ms,
            ($13::smallint[])[u.kind] AS outbox, ($14::boolean[])[u.kind] AS acked,
            ($15::smallint[])[u.kind] AS timer, ($16::smallint[])[u.kind] AS step_to,
            ($17::smallint[])[u.kind] AS job_to, ($18::bigint[])[u.kind] AS ledger,
            ($19::text[])[u.kind] AS changes, ($20::smallint[])[u.kind] AS job_from,
            ($21::text[])[u.kind] AS claim_id, j.state AS job_state, j.verdict
        FROM alive, unnest($3::uuid[], $4::integer[], $5::bigint[], $6::integer[], $7::integer[],
            $8::bigint[], $9::bigint[], $10::integer[]) WITH ORDINALITY AS u (job_id, step_index, branch, turn,
            attempt_no, version, lease_id, kind, n)
            JOIN sprag.job j ON j.job_id = u.job_id
        WHERE u.step_index >= 0 AND u.attempt_no > 0 AND u.turn >= 0) AS i
    WHERE i.job_state = i.job_from AND i.verdict IS NULL AND a.job_id = i.job_id AND a.step_index = i.step_index
        AND a.branch = i.branch AND a.turn = i.turn AND a.attempt_no = i.attempt_no
        AND a.version = i.version AND a.ledger / 100000000000 % 10 = 0 AND a.ledger >= 1000000000000
    RETURNING i.n, i.now, i.job_from, i.job_to, i.changes, a.job_id, a.step_index, a.branch, a.turn,
        a.attempt_no, a.version, a.lease_expires_at
), numbered AS MATERIALIZED (
    SELECT e.*, row_number() OVER (PARTITION BY e.job_id ORDER BY e.n) AS ordinal,
        count(*) OVER (PARTITION BY e.job_id) AS of_job
    FROM entered e
), moved AS MATERIALIZED (
    UPDATE sprag.job j SET state = e.job_to, version = j.version + e.of_job,
        events = j.events + e.of_job, attempts_total = j.attempts_total + e.of_job, updated_at = e.now
    FROM numbered e
    WHERE e.ordinal = 1 AND j.job_id = e.job_id AND j.state = e.job_from AND j.verdict IS NULL
    RETURNING j.job_id, j.events - e.of_job AS events, e.of_job
), told AS (
    INSERT INTO sprag.event (job_id, n, at, step_index, branch, turn, attempt_no, changes)
    SELECT e.job_id, m.events + e.ordinal, e.now, e.step_index, e.branch, e.turn, e.attempt_no, e.changes
    FROM moved m JOIN numbered e ON e.job_id = m.job_id
)
SELECT n, version, lease_expires_at FROM entered
WHERE (SELECT sprag.expect((SELECT coalesce(sum(of_job), 0) FROM moved) = (SELECT count(*) FROM entered)))
