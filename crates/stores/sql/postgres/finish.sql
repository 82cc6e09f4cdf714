-- Steps 1 to 3 of a slice of messages of sequences, in one statement; no two are of the same job. By the job's
-- state in the statement's snapshot each message takes one of the two plans that were handed in for its kind
-- (messages that are planned alike share them, at `kind`), at k: that for a job that goes on, or that for one that
-- is being cancelled; and of that plan, at q, the part for a message that leaves the job open or for one that
-- closes it. Attempts are written first, in the order of their keys, with the guard inside (the version, and digit
-- 6 of the GUID unset), then their jobs in the same order, if they are where the snapshot had them; if one has
-- moved on, the statement ends and is run again whole. Nothing here chooses a state or a digit.
-- With `$24` the slice is that of `end.sql` before it in this session, of which nobody has heard yet: only what
-- that has marked with the same number is finished.
-- Whatever finds a row finds it by columns of `plan`, also where they are constant: a planner that knows a
-- constant may go through the index by less than the whole key.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), plan AS (
    UPDATE sprag.attempt a SET state = ($11::smallint[])[i.k], version = a.version + 1,
        ledger = ($12::bigint[])[i.q], guid = ($13::bigint[])[i.q], children = i.children,
        owner = NULL, admitted_at = NULL, updated_at = i.now, completed_at = i.now
    FROM (SELECT c.*, c.semaphore + c.children - 1 AS after, c.semaphore + c.children = 1 AS closes,
            2 * c.k - CASE WHEN c.semaphore + c.children = 1 THEN 0 ELSE 1 END AS q,
            -- While any service is paused nothing is entered ahead: all goes by the queue, where claims look.
            ($14::boolean[])[c.kind] AND NOT EXISTS (SELECT 1 FROM sprag.service) AS enter
        FROM (SELECT h.*, ($10::smallint[])[h.k] AS follows, least(($10::smallint[])[h.k], 1) AS children
            FROM (SELECT alive.now, u.n::integer AS n, u.job_id, u.step_index, u.branch, u.turn, u.attempt_no,
                    u.version, u.kind, j.semaphore, j.version + 1 AS job_version,
                    j.events + 1 AS event, j.state AS job_state, j.state = $9::smallint AS cancelling,
                    2 * u.kind - CASE WHEN j.state = $9::smallint THEN 0 ELSE 1 END AS k
                FROM alive, unnest($3::uuid[], $4::integer[], $5::bigint[], $6::integer[], $7::integer[],
                    $8::bigint[], $19::integer[]) WITH ORDINALITY
                    AS u (job_id, step_index, branch, turn, attempt_no, version, kind, n)
                    JOIN sprag.job j ON j.job_id = u.job_id
                WHERE u.step_index >= 0 AND u.attempt_no > 0 AND u.turn >= 0 AND j.semaphore > 0
                ORDER BY u.n) AS h OFFSET 0) AS c OFFSET 0) AS i
    WHERE a.job_id = i.job_id AND a.step_index = i.step_index AND a.branch = i.branch
        AND a.turn = i.turn AND a.attempt_no = i.attempt_no AND a.version = i.version
        AND a.guid / 1000000000 % 10 = 0
        AND ($24::text IS NULL OR current_setting('sprag.entered_' || i.n, true) = $24::text)
    RETURNING i.n, i.k, i.now, i.job_id, i.step_index, i.branch, i.turn, i.attempt_no, i.follows, i.after, i.closes,
        i.enter, i.cancelling, i.job_state, i.job_version, i.event, i.kind,
        i.step_index + 1 AS next_step, 1 AS first_attempt_no, a.priority, a.step_id, a.step_type, a.service, a.gate,
        a.gate_max, a.gate_gap, a.error_code, a.error_message
), next_steps AS (
    UPDATE sprag.attempt a SET version = a.version + 1, updated_at = p.now,
        ledger = a.ledger + CASE WHEN p.enter THEN 1000000000000 ELSE 0 END,
        owner = CASE WHEN p.enter THEN $1 END,
        ready_at = CASE WHEN p.enter THEN NULL ELSE p.now - a.priority * $15::bigint END
    FROM plan p
    WHERE p.follows = 1 AND a.job_id = p.job_id AND a.step_index = p.next_step
        AND a.branch = p.branch AND a.turn = p.turn AND a.attempt_no = p.first_attempt_no
), next_attempts AS (
    INSERT INTO sprag.attempt (job_id, step_index, branch, turn, attempt_no, state, version, ledger,
        losses, excused, timer_at, created_at, updated_at, priority, step_id, step_type, service, gate, gate_max,
        gate_gap)
    SELECT p.job_id, p.step_index, p.branch, p.turn, p.attempt_no + 1, ($11::smallint[])[p.k], 1, 0,
        ($16::integer[])[p.k], ($23::integer[])[p.k], p.now + ($17::bigint[])[p.k], p.now, p.now, p.priority,
        p.step_id, p.step_type, p.service, p.gate, p.gate_max, p.gate_gap
    FROM plan p WHERE p.follows = 2
), waiting AS (
    UPDATE sprag.attempt a SET state = ($21::smallint[])[p.kind], version = a.version + 1, ready_at = NULL,
        timer_at = NULL, admitted_at = NULL, updated_at = p.now, completed_at = p.now
    FROM plan p
    WHERE p.cancelling AND a.job_id = p.job_id AND a.state IN (0, 5) AND a.ending IS NULL
), jobs AS (
    UPDATE sprag.job j SET semaphore = p.after,
        state = CASE WHEN p.closes THEN ($18::smallint[])[p.k] ELSE j.state END,
        version = p.job_version, events = p.event,
        current_step = j.current_step + CASE WHEN p.follows = 1 THEN 1 ELSE 0 END, updated_at = p.now,
        completed_at = CASE WHEN p.closes THEN p.now END,
        error_code = CASE WHEN p.closes THEN p.error_code END,
        error_message = CASE WHEN p.closes THEN p.error_message END
    FROM plan p
    WHERE j.job_id = p.job_id AND j.version = p.job_version - 1 AND j.semaphore > 0
    RETURNING 1
), released AS (
    UPDATE sprag.tenant t SET open_jobs = t.open_jobs - c.closed
    FROM (SELECT j.tenant_id, count(*)::integer AS closed
        FROM plan p JOIN sprag.job j ON j.job_id = p.job_id
        WHERE EXISTS (SELECT 1 FROM sprag.tenant) AND p.closes AND substr(j.dedup_key, 1, 2) <> 'c:'
        GROUP BY j.tenant_id) AS c
    WHERE t.tenant_id = c.tenant_id
), completions AS (
    INSERT INTO sprag.completion (job_id, task, due_at, created_at)
    SELECT p.job_id, t.task, p.now, p.now
    FROM plan p, LATERAL unnest(string_to_array(($22::text[])[p.kind], E'\n')) AS t (task)
    WHERE p.closes AND ($22::text[])[p.kind] IS NOT NULL
), told AS (
    INSERT INTO sprag.event (job_id, n, at, step_index, branch, turn, attempt_no, changes)
    SELECT p.job_id, p.event, p.now, p.step_index, p.branch, p.turn, p.attempt_no,
        ($20::text[])[p.k]
        || CASE WHEN p.closes THEN 'J' || p.job_state || '>' || ($18::smallint[])[p.k] || ' ' ELSE '' END
    FROM plan p
)
SELECT n, CASE WHEN closes THEN ($18::smallint[])[k] ELSE job_state END AS state, job_version,
    follows = 1 AND enter AS entered
FROM plan
WHERE (SELECT sprag.expect((SELECT count(*) FROM jobs) = (SELECT count(*) FROM plan)))
