-- Version 1 of the books, in the schema `sprag`. Times are milliseconds since 1970. States are the codes
-- of the kernel's tables; a test compares these CHECKs with them. Tables, columns and meanings are those
-- of the SQLite schema, so that the audit is one set of queries for both.

CREATE TABLE sprag.meta (
    key text PRIMARY KEY,
    value text NOT NULL
);
-- There while the store takes envelopes and requests; see `expect_open`.
INSERT INTO sprag.meta VALUES ('open', '');

-- One life of one engine process. Every write of an engine holds its row FOR KEY SHARE: beats go on,
-- but a takeover waits for the write, and a write after the takeover finds the engine dead.
CREATE TABLE sprag.engine (
    engine_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    joined_at bigint NOT NULL,
    beat_at bigint NOT NULL,
    dead smallint NOT NULL DEFAULT 0 CHECK (dead IN (0, 1))
) WITH (fillfactor = 50);

CREATE TABLE sprag.protocol (
    protocol_id text PRIMARY KEY,
    definition text NOT NULL,
    created_at bigint NOT NULL
);

-- What columns of the hot tables may hold. A table's own CHECKs are read again from their text by every statement that
-- writes to it, whatever it writes; a domain's are kept by the session and are looked at for what is assigned. So only
-- what is about two columns is a CHECK there.
CREATE DOMAIN sprag.job_state AS smallint CHECK (VALUE BETWEEN 0 AND 6);
CREATE DOMAIN sprag.verdict AS smallint CHECK (VALUE IN (5, 6));
CREATE DOMAIN sprag.step_state AS smallint CHECK (VALUE BETWEEN 0 AND 8);
CREATE DOMAIN sprag.outbox_state AS smallint CHECK (VALUE BETWEEN 0 AND 2);
CREATE DOMAIN sprag.ending AS smallint CHECK (VALUE BETWEEN 1 AND 11);
CREATE DOMAIN sprag.ledger AS bigint CHECK (VALUE BETWEEN 0 AND 999999999999999);
CREATE DOMAIN sprag.lane AS integer CHECK (VALUE BETWEEN 0 AND 15);
CREATE DOMAIN sprag.flag AS smallint CHECK (VALUE IN (0, 1));
CREATE DOMAIN sprag.amount AS integer CHECK (VALUE >= 0);
CREATE DOMAIN sprag.ordinal AS integer CHECK (VALUE > 0);
CREATE DOMAIN sprag.span AS bigint CHECK (VALUE > 0);

-- The protocol is looked up when a job is inserted instead of referenced: protocols are never deleted,
-- and a foreign key would lock one hot row for every job.
CREATE TABLE sprag.job (
    job_id uuid PRIMARY KEY,
    version bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    completed_at bigint CHECK ((completed_at IS NOT NULL) = (state >= 4)),
    semaphore sprag.amount NOT NULL,
    initial sprag.ordinal NOT NULL,
    current_step integer NOT NULL,
    steps sprag.ordinal NOT NULL,
    attempts_total integer NOT NULL DEFAULT 0,
    events integer NOT NULL DEFAULT 0,
    lane sprag.lane NOT NULL,
    priority integer NOT NULL DEFAULT 0,
    state sprag.job_state NOT NULL,
    verdict sprag.verdict,
    is_graph sprag.flag NOT NULL DEFAULT 0,
    mode sprag.flag NOT NULL,
    rerun_of uuid,
    idempotency_hash bytea NOT NULL,
    tenant_id text NOT NULL,
    request_type text NOT NULL,
    protocol_id text NOT NULL,
    dedup_key text NOT NULL,
    idempotency_key text,
    doc_id text,
    routing_key text NOT NULL,
    correlation_id text,
    traceparent text,
    error_code text,
    error_message text,
    schema_version text NOT NULL,
    input_ref text NOT NULL,
    output_ref text NOT NULL,
    payload text NOT NULL,
    UNIQUE (tenant_id, dedup_key)
) WITH (fillfactor = 50);

-- One row per attempt, never reset: activation, activity ledger, fence, outbox entry, and the message
-- that ends it with its GUID ledger. A step is its newest attempt.
CREATE TABLE sprag.attempt (
    job_id uuid NOT NULL,
    branch bigint NOT NULL DEFAULT 0,
    delay_ms bigint NOT NULL DEFAULT 0,
    waits_until bigint,
    version bigint NOT NULL,
    ledger sprag.ledger NOT NULL,
    guid sprag.ledger,
    owner bigint,
    ready_at bigint,
    timer_at bigint,
    admitted_at bigint CHECK (admitted_at IS NULL OR gate IS NOT NULL),
    gate_gap sprag.span,
    lease_id bigint,
    lease_expires_at bigint,
    sent_at bigint,
    acked_at bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    completed_at bigint,
    step_index integer NOT NULL,
    turn integer NOT NULL DEFAULT 0,
    attempt_no sprag.ordinal NOT NULL,
    children integer,
    closed_parked integer NOT NULL DEFAULT 0,
    countdown sprag.amount NOT NULL DEFAULT 0,
    publish_attempts integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,
    excused integer NOT NULL DEFAULT 0,
    priority integer NOT NULL DEFAULT 0,
    gate_max sprag.ordinal,
    state sprag.step_state NOT NULL,
    ending sprag.ending,
    outbox sprag.outbox_state,
    content bytea,
    step_id text NOT NULL,
    step_type text NOT NULL,
    service text NOT NULL,
    gate text,
    claim_id text,
    waits_for text,
    progress text,
    error_code text,
    error_message text,
    output text,
    output_ref text,
    item text,
    child_id uuid,
    PRIMARY KEY (job_id, step_index, branch, turn, attempt_no)
) WITH (fillfactor = 40);

-- What can be claimed, and what must be looked at when its time has come. Nothing else is indexed that
-- changes, and the fast path touches neither column, so that its updates stay on their page.
CREATE INDEX attempt_ready ON sprag.attempt (service, ready_at, job_id)
WHERE ready_at IS NOT NULL AND (gate IS NULL OR admitted_at IS NOT NULL);
CREATE INDEX attempt_timer ON sprag.attempt (timer_at, job_id) WHERE timer_at IS NOT NULL;
-- An attempt with a gate that is due stands in line there until it is admitted, and then holds its slot until
-- it is over. Claims see neither the line nor how long it is.
CREATE INDEX attempt_line ON sprag.attempt (gate, ready_at, job_id)
WHERE ready_at IS NOT NULL AND gate IS NOT NULL AND admitted_at IS NULL;
CREATE INDEX attempt_admitted ON sprag.attempt (gate) WHERE admitted_at IS NOT NULL;
-- What was handed out under a claim and not yet reported, so that the claim can be answered again.
CREATE INDEX attempt_claim ON sprag.attempt (claim_id)
WHERE claim_id IS NOT NULL AND timer_at IS NOT NULL;
-- What engines hold, so that what a dead one held is found at once, however much there is. The first entry of an
-- attempt and its end touch it, nothing in between.
CREATE INDEX attempt_owner ON sprag.attempt (owner) WHERE owner IS NOT NULL;
-- Steps that wait, or have waited, for a signal.
CREATE INDEX attempt_waits ON sprag.attempt (job_id, waits_for) WHERE waits_for IS NOT NULL;

-- What somebody has said to a job. It goes to one wait, and no wait is given two.
CREATE TABLE sprag.signal (
    job_id uuid NOT NULL,
    branch bigint CHECK ((branch IS NULL) = (step_index IS NULL)),
    received_at bigint NOT NULL,
    n integer NOT NULL CHECK (n > 0),
    step_index integer,
    turn integer CHECK ((turn IS NULL) = (step_index IS NULL)),
    decision smallint NOT NULL CHECK (decision IN (0, 1)),
    content bytea NOT NULL,
    signal_id text NOT NULL,
    name text NOT NULL,
    payload text NOT NULL,
    said_by text,
    reason text,
    PRIMARY KEY (job_id, n),
    UNIQUE (job_id, signal_id)
);
CREATE UNIQUE INDEX signal_taken ON sprag.signal (job_id, step_index, branch, turn)
WHERE step_index IS NOT NULL;

-- Callbacks that changed nothing: the last of each kind at a step, and how many there were.
CREATE TABLE sprag.stale (
    job_id uuid NOT NULL,
    branch bigint NOT NULL,
    lease_id bigint NOT NULL,
    times bigint NOT NULL,
    at bigint NOT NULL,
    step_index integer NOT NULL,
    turn integer NOT NULL,
    attempt_no integer NOT NULL,
    callback text NOT NULL,
    code text NOT NULL,
    PRIMARY KEY (job_id, step_index, branch, turn, callback, code)
) WITH (fillfactor = 50);

-- Envelopes that users write inside of their own transactions, through `sprag.submit`, and those of ticks, which
-- say by what key their job is known. An engine turns each into a job, in the transaction that marks the row with
-- it, or notes why there is none.
CREATE TABLE sprag.inbox (
    inbox_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    submitted_at bigint NOT NULL,
    taken_at bigint,
    job_id uuid,
    envelope text NOT NULL,
    dedup_key text,
    error_code text,
    error_message text
);
CREATE INDEX inbox_waiting ON sprag.inbox (inbox_id) WHERE taken_at IS NULL;

-- Jobs by the clock. A tick moves the row on and lays its envelope into the inbox, in one statement.
CREATE TABLE sprag.schedule (
    tenant_id text NOT NULL,
    schedule_id text NOT NULL,
    cron text NOT NULL,
    zone text NOT NULL,
    missed smallint NOT NULL CHECK (missed BETWEEN 0 AND 2),
    envelope text NOT NULL,
    version bigint NOT NULL,
    created_at bigint NOT NULL,
    next_at bigint CHECK (next_at > last_tick),
    last_tick bigint,
    paused_at bigint,
    PRIMARY KEY (tenant_id, schedule_id)
);
CREATE INDEX schedule_next ON sprag.schedule (next_at) WHERE next_at IS NOT NULL AND paused_at IS NULL;

-- What happened, in the commit in which it happened. Numbers are dense per job; one row may hold
-- several changes. A reader of the whole feed goes by (xid, pos) and stops below
-- pg_snapshot_xmin(pg_current_snapshot()), where no open transaction can still write.
CREATE TABLE sprag.event (
    pos bigint GENERATED ALWAYS AS IDENTITY (CACHE 500),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    job_id uuid NOT NULL,
    branch bigint NOT NULL DEFAULT 0,
    at bigint NOT NULL,
    n integer NOT NULL,
    step_index integer,
    turn integer NOT NULL DEFAULT 0,
    attempt_no integer,
    changes text NOT NULL,
    note text,
    PRIMARY KEY (job_id, n)
);
CREATE INDEX event_feed ON sprag.event (xid, pos);

-- What somebody asked for. The status is how far it came by itself; with a job it is the job's. A run has
-- a number and a job, and begins only when the plan is frozen.
CREATE TABLE sprag.request (
    request_id uuid PRIMARY KEY,
    job_id uuid CHECK (job_id IS NULL OR status = 2),
    version bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    run_no integer NOT NULL CHECK ((run_no > 0) = (job_id IS NOT NULL)),
    events integer NOT NULL,
    status smallint NOT NULL CHECK (status BETWEEN 0 AND 2),
    request_key bytea NOT NULL,
    content_hash bytea NOT NULL,
    tenant_id text NOT NULL,
    request_type text NOT NULL,
    plan_revision text NOT NULL,
    requirement text NOT NULL,
    inputs text NOT NULL,
    envelope text NOT NULL,
    protocol_id text,
    draft text,
    UNIQUE (tenant_id, request_type, request_key)
);
-- Whether a job is the current run of one.
CREATE INDEX request_run ON sprag.request (job_id) WHERE job_id IS NOT NULL;

-- What happened to a request by itself; the history of its runs is that of their jobs.
CREATE TABLE sprag.request_event (
    request_id uuid NOT NULL,
    at bigint NOT NULL,
    n integer NOT NULL,
    changes text NOT NULL,
    PRIMARY KEY (request_id, n)
);

-- Services that nothing is claimed or entered of; one that is not paused has no row.
CREATE TABLE sprag.service (
    service text PRIMARY KEY,
    paused_at bigint NOT NULL
);

-- Services that an engine or a worker has offered itself for, and when last: who waits for another one waits
-- for somebody to come.
CREATE TABLE sprag.served (
    service text PRIMARY KEY,
    seen_at bigint NOT NULL
) WITH (fillfactor = 50);

-- Tenants that may have so many open jobs; one without a limit has no row, and none of its jobs writes
-- here. Child jobs are part of their parent and do not count.
CREATE TABLE sprag.tenant (
    tenant_id text PRIMARY KEY,
    max_open integer NOT NULL CHECK (max_open >= 0),
    open_jobs integer NOT NULL CHECK (open_jobs >= 0)
) WITH (fillfactor = 50);

-- Gates with a rate: no start before this time, in microseconds. One whose time has passed needs no row.
CREATE TABLE sprag.gate (
    gate text PRIMARY KEY,
    arrival_us bigint NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX gate_arrival ON sprag.gate (arrival_us);

-- What the closing commit of a job has left to do for the world outside: recorded once, delivered at least
-- once. The time is when to deliver it, or to deliver it again if its deliverer is not heard of.
CREATE TABLE sprag.completion (
    job_id uuid NOT NULL,
    due_at bigint,
    owner bigint,
    created_at bigint NOT NULL,
    delivered_at bigint,
    deliveries integer NOT NULL DEFAULT 0,
    task text NOT NULL,
    error_message text,
    PRIMARY KEY (job_id, task),
    CHECK ((due_at IS NULL) = (delivered_at IS NOT NULL))
) WITH (fillfactor = 50);
CREATE INDEX completion_due ON sprag.completion (task, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX completion_owner ON sprag.completion (owner) WHERE owner IS NOT NULL;

-- What is left of a job that retention has deleted: its dedup key answers for it.
CREATE TABLE sprag.retired (
    tenant_id text NOT NULL,
    dedup_key text NOT NULL,
    job_id uuid NOT NULL,
    retired_at bigint NOT NULL,
    state smallint NOT NULL CHECK (state BETWEEN 4 AND 6),
    idempotency_hash bytea NOT NULL,
    PRIMARY KEY (tenant_id, dedup_key)
);
CREATE INDEX retired_at ON sprag.retired (retired_at);

-- A batch step: how far it is, what that amounts to, and the fence: the attempt that may move it, and where the
-- cursor was when that attempt took it up.
CREATE TABLE sprag.batch (
    job_id uuid NOT NULL,
    branch bigint NOT NULL,
    lease_id bigint NOT NULL,
    opened bigint NOT NULL DEFAULT 0,
    cursor bigint NOT NULL CHECK (cursor = success + skip + fail + cancel AND cursor >= opened),
    success bigint NOT NULL,
    skip bigint NOT NULL,
    fail bigint NOT NULL,
    cancel bigint NOT NULL,
    first_failed bigint CHECK ((first_failed IS NULL) = (fail = 0)),
    total bigint CHECK (cursor <= total),
    out_bytes bigint NOT NULL,
    outcome_hash bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    step_index integer NOT NULL,
    turn integer NOT NULL,
    attempt_no integer NOT NULL,
    input_hash bytea NOT NULL,
    PRIMARY KEY (job_id, step_index, branch, turn)
) WITH (fillfactor = 50);

-- What one commit of a batch has added to it: a contiguous run of outcomes and outputs.
CREATE TABLE sprag.batch_journal (
    job_id uuid NOT NULL,
    branch bigint NOT NULL,
    first_seq bigint NOT NULL,
    seqs bigint NOT NULL CHECK (seqs > 0),
    at bigint NOT NULL,
    step_index integer NOT NULL,
    turn integer NOT NULL,
    outcomes text NOT NULL,
    notes text NOT NULL,
    outputs text NOT NULL,
    PRIMARY KEY (job_id, step_index, branch, turn, first_seq)
);

-- How many jobs are in which state, so that counting reads a handful of rows. Kept by triggers, one write
-- per statement: whatever writes jobs cannot forget it. Connections keep to shards of their own, so that
-- they seldom wait for each other.
CREATE TABLE sprag.job_count (
    jobs bigint NOT NULL,
    shard smallint NOT NULL,
    state smallint NOT NULL,
    PRIMARY KEY (shard, state)
) WITH (fillfactor = 50);

CREATE FUNCTION sprag.count_born() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sprag.job_count (shard, state, jobs)
    SELECT pg_backend_pid() % 32, state, count(*) FROM born GROUP BY state
    ON CONFLICT (shard, state) DO UPDATE SET jobs = sprag.job_count.jobs + EXCLUDED.jobs;
    RETURN NULL;
END $$;
CREATE FUNCTION sprag.count_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sprag.job_count (shard, state, jobs)
    SELECT pg_backend_pid() % 32, state, sum(n)
    FROM (SELECT state, 1 AS n FROM after UNION ALL SELECT state, -1 FROM before) AS moves
    GROUP BY state HAVING sum(n) <> 0 ORDER BY state
    ON CONFLICT (shard, state) DO UPDATE SET jobs = sprag.job_count.jobs + EXCLUDED.jobs;
    RETURN NULL;
END $$;
CREATE FUNCTION sprag.count_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sprag.job_count (shard, state, jobs)
    SELECT pg_backend_pid() % 32, state, -count(*) FROM gone GROUP BY state ORDER BY state
    ON CONFLICT (shard, state) DO UPDATE SET jobs = sprag.job_count.jobs + EXCLUDED.jobs;
    RETURN NULL;
END $$;
CREATE TRIGGER job_count_insert AFTER INSERT ON sprag.job REFERENCING NEW TABLE AS born
    FOR EACH STATEMENT EXECUTE FUNCTION sprag.count_born();
CREATE TRIGGER job_count_update AFTER UPDATE ON sprag.job
    REFERENCING OLD TABLE AS before NEW TABLE AS after
    FOR EACH STATEMENT EXECUTE FUNCTION sprag.count_moved();
CREATE TRIGGER job_count_delete AFTER DELETE ON sprag.job REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION sprag.count_gone();
-- Who may do what. Only the hash of a token is kept.
CREATE TABLE sprag.token (
    token_id text PRIMARY KEY,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    scopes smallint NOT NULL CHECK (scopes BETWEEN 1 AND 15),
    hash bytea NOT NULL UNIQUE,
    tenant_id text,
    label text NOT NULL
);

-- The store's time, or a test's.
CREATE FUNCTION sprag.now_ms(test bigint) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL RESTRICTED
RETURN coalesce(test, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- Ends a statement whose rows have moved between its snapshot and its locks; it is run again whole.
CREATE FUNCTION sprag.expect(holds boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF holds IS NOT TRUE THEN
        RAISE EXCEPTION 'a row has moved on since the snapshot' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN true;
END $$;

-- Ends a statement that has created a job again which retention has just deleted: its own snapshot does not
-- see that, this look does. The statement is run again whole, and then finds the key retired.
CREATE FUNCTION sprag.expect_not_retired(tenant_ids text[], dedup_keys text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM sprag.retired)
        AND EXISTS (SELECT 1 FROM unnest(tenant_ids, dedup_keys) AS i (tenant_id, dedup_key)
            JOIN sprag.retired r ON r.tenant_id = i.tenant_id AND r.dedup_key = i.dedup_key)
    THEN
        RAISE EXCEPTION 'a job was retired since the snapshot' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN true;
END $$;

-- Refuses whoever writes without being an engine once a move has closed the store. The lock on the row has a move wait
-- for those who are not done, and a transaction whose snapshot still has the row fails on it.
CREATE FUNCTION sprag.expect_open() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM sprag.meta WHERE key = 'open' FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'STORE_CLOSED: this store takes nothing more' USING ERRCODE = 'SP001',
            DETAIL = (SELECT value FROM sprag.meta WHERE key = 'closed');
    END IF;
    RETURN true;
END $$;

-- Submits an envelope as part of the caller's transaction; returns its row of the inbox. It writes with the
-- rights of the store's owner and finds nothing by way of the caller's search path, so that a role needs to
-- be granted EXECUTE and nothing else. The schema alone gives no right to anything in it. It notifies nobody, so that
-- the transaction can be prepared; an engine finds the row with its next beat.
CREATE FUNCTION sprag.submit(envelope text) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO sprag.inbox (envelope, submitted_at) SELECT $1, sprag.now_ms(NULL) WHERE sprag.expect_open()
    RETURNING inbox_id
$$;
CREATE FUNCTION sprag.submit(envelope jsonb) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO sprag.inbox (envelope, submitted_at) SELECT $1::text, sprag.now_ms(NULL) WHERE sprag.expect_open()
    RETURNING inbox_id
$$;
REVOKE ALL ON FUNCTION sprag.submit(text), sprag.submit(jsonb) FROM PUBLIC;
GRANT USAGE ON SCHEMA sprag TO PUBLIC;
