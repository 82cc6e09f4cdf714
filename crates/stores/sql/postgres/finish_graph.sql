-- Steps 1 to 3 of a slice of messages of graphs, in one statement, as finish.sql does it for sequences. A
-- message takes one of three plans: p = 1 for a job that goes on, 2 for one that has failed elsewhere, 3 for
-- one that is being cancelled. If its job is ending, the first message of a job in the slice also closes
-- every obligation that nobody has begun, what is not published with its directive. Which those are is read by the
-- statement's snapshot: if the job was not ending there and has moved on since, another engine may just have opened some,
-- and if one is locked, whoever has it may leave it as it is or want the job; then the statement ends, and is run
-- again whole. A message that makes the end certain comes alone of its job. Arrays with
-- one value per message are read at n, those with three at k, those with six at q. What all ends open and
-- count down stands in one row of arrays; `$20`, `$24` and `$28` say where the part of each message ends. The parts
-- are cut out message by message: a join by number would compare every place with every message.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), message AS MATERIALIZED (
    SELECT alive.now, i.n::integer AS n, a.job_id, a.step_index, a.branch, a.turn, a.attempt_no,
        a.priority, a.delay_ms, a.waits_until, a.item, a.step_id, a.step_type, a.service, a.gate, a.gate_max,
        a.gate_gap, a.error_code, a.error_message
    FROM alive, unnest($3::uuid[], $4::integer[], $5::bigint[], $6::integer[], $7::integer[],
        $8::bigint[]) WITH ORDINALITY AS i (job_id, step_index, branch, turn, attempt_no, version, n)
        JOIN sprag.attempt a ON a.job_id = i.job_id AND a.step_index = i.step_index
            AND a.branch = i.branch AND a.turn = i.turn AND a.attempt_no = i.attempt_no
    WHERE i.step_index >= 0 AND i.attempt_no > 0 AND i.turn >= 0
        AND a.version = i.version AND a.guid / 1000000000 % 10 = 0
    ORDER BY i.n FOR UPDATE OF a
), held AS MATERIALIZED (
    SELECT m.*, j.semaphore, j.version AS job_version, j.events, j.state AS job_state, j.tenant_id,
        substr(j.dedup_key, 1, 2) <> 'c:' AS takes_slot,
        CASE WHEN j.state = $9::smallint THEN 3 WHEN j.verdict IS NOT NULL THEN 2 ELSE 1 END AS p
    FROM message m JOIN sprag.job j ON j.job_id = m.job_id
    WHERE j.semaphore > 0 ORDER BY m.n FOR NO KEY UPDATE OF j
), chosen AS MATERIALIZED (
    SELECT h.*, 3 * (h.n - 1) + h.p AS k,
        CASE WHEN h.p = 1 THEN ($10::smallint[])[h.n] ELSE 0 END AS follows,
        CASE WHEN h.p = 1 THEN ($11::integer[])[h.n] ELSE 0 END AS children,
        CASE WHEN h.p = 1 THEN ($12::smallint[])[h.n] END AS pins,
        row_number() OVER (PARTITION BY h.job_id ORDER BY h.n) AS ordinal,
        count(*) OVER (PARTITION BY h.job_id) AS of_job
    FROM held h
), waiting AS MATERIALIZED (
    SELECT c.n, c.now, c.p, a.job_id, a.step_index, a.branch, a.turn, a.attempt_no,
        a.ready_at IS NOT NULL OR a.timer_at IS NOT NULL OR a.owner IS NOT NULL OR a.countdown > 0
            OR a.ledger >= 1000000000000 AS is_live
    FROM chosen c JOIN sprag.attempt a ON a.job_id = c.job_id
    WHERE c.ordinal = 1 AND (c.p > 1 OR c.pins IS NOT NULL) AND a.state IN (0, 1, 5) AND a.ending IS NULL
        AND (c.p = 3 OR a.ready_at IS NOT NULL OR a.timer_at IS NOT NULL OR a.owner IS NOT NULL
            OR a.countdown > 0 OR a.ledger >= 1000000000000)
    FOR UPDATE OF a NOWAIT
), closed AS (
    UPDATE sprag.attempt a SET state = ($13::smallint[])[w.n],
        outbox = CASE WHEN a.outbox IS NOT NULL THEN ($47::smallint[])[w.n] END, version = a.version + 1,
        ready_at = NULL, timer_at = NULL, owner = NULL, countdown = 0, admitted_at = NULL,
        updated_at = w.now, completed_at = w.now
    FROM waiting w
    WHERE a.job_id = w.job_id AND a.step_index = w.step_index AND a.branch = w.branch
        AND a.turn = w.turn AND a.attempt_no = w.attempt_no
), settled AS MATERIALIZED (
    SELECT c.*, CASE WHEN c.ordinal = 1 AND (c.p > 1 OR c.pins IS NOT NULL)
        THEN (SELECT count(*)::integer FROM waiting w WHERE w.n = c.n AND w.is_live) ELSE 0 END AS closed
    FROM chosen c
), running AS (
    SELECT s.*, s.semaphore + sum(s.children - 1 - s.closed)
        OVER (PARTITION BY s.job_id ORDER BY s.n) AS after
    FROM settled s
), plan AS MATERIALIZED (
    SELECT r.*, r.ordinal = r.of_job AS is_last, r.attempt_no + 1 AS next_attempt_no,
        6 * (r.n - 1) + 2 * (r.p - 1) + CASE WHEN r.after = 0 THEN 2 ELSE 1 END AS q
    FROM running r
), attempts AS (
    UPDATE sprag.attempt a SET state = ($14::smallint[])[p.k], version = a.version + 1,
        ledger = ($15::bigint[])[p.q], guid = ($16::bigint[])[p.q], children = p.children,
        closed_parked = p.closed, owner = NULL, admitted_at = NULL, updated_at = p.now,
        completed_at = p.now
    FROM plan p
    WHERE a.job_id = p.job_id AND a.step_index = p.step_index AND a.branch = p.branch
        AND a.turn = p.turn AND a.attempt_no = p.attempt_no
), next_attempts AS (
    INSERT INTO sprag.attempt (job_id, step_index, branch, turn, attempt_no, state, version, ledger,
        losses, excused, timer_at, created_at, updated_at, priority, delay_ms, waits_until, item, step_id, step_type,
        service, gate, gate_max, gate_gap)
    SELECT p.job_id, p.step_index, p.branch, p.turn, p.next_attempt_no, ($14::smallint[])[p.k], 1, 0,
        ($17::integer[])[p.n], ($46::integer[])[p.n], p.now + ($18::bigint[])[p.n], p.now, p.now, p.priority, p.delay_ms,
        p.waits_until, p.item, p.step_id, p.step_type, p.service, p.gate, p.gate_max, p.gate_gap
    FROM plan p WHERE p.follows = 2
), activated AS (
    UPDATE sprag.attempt a SET version = a.version + 1, updated_at = d.now,
        ready_at = CASE WHEN a.delay_ms = 0 THEN d.now - a.priority * $19::bigint END,
        timer_at = CASE WHEN a.delay_ms > 0 THEN d.now + a.delay_ms END
    FROM (SELECT p.now, p.job_id, u.step_index, u.branch, u.turn, 1 AS attempt_no
        FROM plan p, LATERAL (SELECT coalesce(($20::integer[])[p.n - 1], 0) + 1 AS first,
                ($20::integer[])[p.n] AS last) AS c,
            LATERAL unnest(($21::integer[])[c.first:c.last], ($22::bigint[])[c.first:c.last],
                ($23::integer[])[c.first:c.last]) AS u (step_index, branch, turn)
        WHERE p.follows = 1 OFFSET 0) AS d -- what is to be found first, or all of the job would be looked at
    WHERE a.job_id = d.job_id AND a.step_index = d.step_index AND a.branch = d.branch
        AND a.turn = d.turn AND a.attempt_no = d.attempt_no
    RETURNING 1
), counted AS (
    UPDATE sprag.attempt a SET version = a.version + d.ends, updated_at = d.now,
        countdown = a.countdown - d.ends,
        ready_at = CASE WHEN a.countdown = d.ends AND a.delay_ms = 0
            THEN d.now - a.priority * $19::bigint END,
        timer_at = CASE WHEN a.countdown = d.ends AND a.delay_ms > 0 THEN d.now + a.delay_ms END
    FROM (SELECT p.job_id, u.step_index, u.branch, u.turn, 1 AS attempt_no, max(p.now) AS now,
            count(*)::integer AS ends
        FROM plan p, LATERAL (SELECT coalesce(($24::integer[])[p.n - 1], 0) + 1 AS first,
                ($24::integer[])[p.n] AS last) AS c,
            LATERAL unnest(($25::integer[])[c.first:c.last], ($26::bigint[])[c.first:c.last],
                ($27::integer[])[c.first:c.last]) AS u (step_index, branch, turn)
        WHERE p.follows = 1 GROUP BY p.job_id, u.step_index, u.branch, u.turn) AS d
    WHERE a.job_id = d.job_id AND a.step_index = d.step_index AND a.branch = d.branch
        AND a.turn = d.turn AND a.attempt_no = d.attempt_no
), opened AS (
    INSERT INTO sprag.attempt (job_id, step_index, branch, turn, attempt_no, state, version, ledger, item,
        countdown, ready_at, timer_at, priority, delay_ms, step_id, step_type, service, gate, gate_max,
        gate_gap, created_at, updated_at)
    SELECT p.job_id, u.step_index, u.branch, u.turn, 1, 0, 1, 0, u.item, u.countdown,
        CASE WHEN u.begins = 1 AND u.delay_ms = 0 THEN p.now - u.priority * $19::bigint END,
        CASE WHEN u.begins = 1 AND u.delay_ms > 0 THEN p.now + u.delay_ms END,
        u.priority, u.delay_ms, u.step_id, u.step_type, u.service, u.gate, u.gate_max, u.gate_gap,
        p.now, p.now
    FROM plan p, LATERAL (SELECT coalesce(($28::integer[])[p.n - 1], 0) + 1 AS first,
            ($28::integer[])[p.n] AS last) AS c,
        LATERAL unnest(($29::integer[])[c.first:c.last], ($30::bigint[])[c.first:c.last],
            ($31::integer[])[c.first:c.last], ($32::text[])[c.first:c.last],
            ($33::smallint[])[c.first:c.last], ($34::integer[])[c.first:c.last],
            ($35::integer[])[c.first:c.last], ($36::bigint[])[c.first:c.last],
            ($37::text[])[c.first:c.last], ($38::text[])[c.first:c.last], ($39::text[])[c.first:c.last],
            ($43::text[])[c.first:c.last], ($44::integer[])[c.first:c.last],
            ($45::bigint[])[c.first:c.last]) AS u (step_index, branch, turn, item, begins, countdown,
            priority, delay_ms, step_id, step_type, service, gate, gate_max, gate_gap)
    WHERE p.follows = 1 AND c.last >= c.first
), jobs AS (
    UPDATE sprag.job j SET semaphore = p.after, version = j.version + p.ordinal,
        state = CASE WHEN p.after = 0 THEN ($40::smallint[])[p.k] ELSE j.state END,
        events = j.events + p.ordinal, updated_at = p.now,
        completed_at = CASE WHEN p.after = 0 THEN p.now END, verdict = coalesce(j.verdict, p.pins),
        error_code = CASE WHEN p.pins IS NULL THEN j.error_code ELSE p.error_code END,
        error_message = CASE WHEN p.pins IS NULL THEN j.error_message ELSE p.error_message END
    FROM plan p WHERE p.is_last AND j.job_id = p.job_id
), released AS (
    UPDATE sprag.tenant t SET open_jobs = t.open_jobs - c.closed
    FROM (SELECT p.tenant_id, count(*)::integer AS closed FROM plan p
        WHERE p.after = 0 AND p.takes_slot GROUP BY p.tenant_id) AS c
    WHERE t.tenant_id = c.tenant_id
), completions AS (
    INSERT INTO sprag.completion (job_id, task, due_at, created_at)
    SELECT p.job_id, t.task, p.now, p.now
    FROM plan p, LATERAL unnest(string_to_array(($42::text[])[p.n], E'\n')) AS t (task)
    WHERE p.after = 0 AND ($42::text[])[p.n] IS NOT NULL
), told AS (
    INSERT INTO sprag.event (job_id, n, at, step_index, branch, turn, attempt_no, changes)
    SELECT p.job_id, p.events + p.ordinal, p.now, p.step_index, p.branch, p.turn, p.attempt_no,
        ($41::text[])[p.k] || CASE WHEN p.after <> 0 THEN ''
            ELSE 'J' || p.job_state || '>' || ($40::smallint[])[p.k] || ' ' END
    FROM plan p
)
SELECT n, CASE WHEN after = 0 THEN ($40::smallint[])[k] ELSE job_state END AS state,
    job_version + ordinal AS version
FROM plan
WHERE (SELECT sprag.expect(NOT EXISTS (
    SELECT 1 FROM chosen c JOIN sprag.job s ON s.job_id = c.job_id
    WHERE c.ordinal = 1 AND (c.p > 1 OR c.pins IS NOT NULL) AND s.version <> c.job_version
        AND s.verdict IS NULL AND s.state <> $9::smallint)))
