-- Open attempts of a slice move along and live by their timer. The job moves with the first ACK; if it has
-- moved on meanwhile (a cancel), nothing is written and the worker's word is read again. Nobody but the
-- publisher may own such an attempt. What tells nothing (a heartbeat) leaves the job's row alone. The job is found by
-- `of_job` as in claim.sql.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), renewed AS (
    UPDATE sprag.attempt a SET state = i.step_to, outbox = coalesce(i.outbox, a.outbox),
        sent_at = CASE WHEN i.outbox IS NULL THEN a.sent_at ELSE i.now END,
        acked_at = CASE WHEN i.acked THEN i.now ELSE a.acked_at END,
        lease_expires_at = CASE WHEN i.outbox IS NULL THEN least(i.now + i.ms, i.ends_at)
            ELSE a.lease_expires_at END,
        timer_at = least(i.now + i.ms, i.ends_at), owner = NULL, progress = coalesce(i.progress, a.progress),
        version = a.version + 1, updated_at = i.now
    FROM (SELECT alive.now, u.*, j.state AS job_state
        FROM alive, unnest($3::uuid[], $4::integer[], $5::bigint[], $6::integer[], $7::integer[],
            $8::bigint[], $9::bigint[], $10::smallint[], $11::smallint[], $12::boolean[], $13::bigint[],
            $14::smallint[], $15::smallint[], $16::bigint[], $17::text[], $18::text[], $19::bigint[], $3::uuid[])
            WITH ORDINALITY AS u (job_id, step_index, branch, turn, attempt_no, version, lease_id,
            step_to, outbox, acked, ms, job_from, job_to, owner, progress, changes, ends_at, of_job, n)
            JOIN sprag.job j ON j.job_id = u.of_job
        WHERE u.step_index >= 0 AND u.attempt_no > 0 AND u.turn >= 0) AS i
    WHERE (i.job_from IS NULL OR i.job_state = i.job_from)
        AND a.job_id = i.job_id AND a.step_index = i.step_index AND a.branch = i.branch
        AND a.turn = i.turn AND a.attempt_no = i.attempt_no AND a.version = i.version
        AND a.lease_id = i.lease_id AND a.ending IS NULL AND a.owner IS NOT DISTINCT FROM i.owner
    RETURNING i.n, i.now, i.job_from, i.job_to, i.changes, a.job_id, a.step_index, a.branch, a.turn,
        a.attempt_no, a.version, a.timer_at
), moved AS (
    UPDATE sprag.job j SET state = coalesce(r.job_to, j.state), version = j.version + 1,
        events = j.events + 1, updated_at = r.now
    FROM renewed r
    WHERE r.changes <> '' AND j.job_id = r.job_id AND (r.job_from IS NULL OR j.state = r.job_from)
    RETURNING j.events, r.now, r.changes, r.job_id, r.step_index, r.branch, r.turn, r.attempt_no
), told AS (
    INSERT INTO sprag.event (job_id, n, at, step_index, branch, turn, attempt_no, changes)
    SELECT job_id, events, now, step_index, branch, turn, attempt_no, changes FROM moved
)
SELECT n, version, timer_at FROM renewed
WHERE (SELECT sprag.expect((SELECT count(*) FROM moved)
    = (SELECT count(*) FROM renewed WHERE changes <> '')))
