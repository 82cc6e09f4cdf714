-- Version 1 of the books, in the schema `sprag`. Times are milliseconds since 1970. States are the codes
-- of the kernel's tables; a test compares these CHECKs with them. Tables, columns and meanings are those
-- of the SQLite schema, so that the audit is one set of queries for both.

CREATE TABLE sprag.meta (
    key text PRIMARY KEY,
    value text NOT NULL
);

-- One life of one engine process. Every write of an engine holds its row FOR KEY SHARE: beats go on,
-- but a takeover waits for the write, and a write after the takeover finds the engine dead.
CREATE TABLE sprag.engine (
    engine_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    joined_at bigint NOT NULL,
    beat_at bigint NOT NULL,
    low uuid,
    dead smallint NOT NULL DEFAULT 0 CHECK (dead IN (0, 1))
) WITH (fillfactor = 50);

CREATE TABLE sprag.protocol (
    protocol_id text PRIMARY KEY,
    definition text NOT NULL,
    created_at bigint NOT NULL
);

-- The protocol is looked up when a job is inserted instead of referenced: protocols are never deleted,
-- and a foreign key would lock one hot row for every job.
CREATE TABLE sprag.job (
    job_id uuid PRIMARY KEY,
    version bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    completed_at bigint CHECK ((completed_at IS NOT NULL) = (state >= 4)),
    semaphore integer NOT NULL CHECK (semaphore >= 0),
    initial integer NOT NULL CHECK (initial > 0),
    current_step integer NOT NULL,
    steps integer NOT NULL CHECK (steps > 0),
    attempts_total integer NOT NULL DEFAULT 0,
    events integer NOT NULL DEFAULT 0,
    lane integer NOT NULL CHECK (lane BETWEEN 0 AND 15),
    priority integer NOT NULL DEFAULT 0,
    state smallint NOT NULL CHECK (state BETWEEN 0 AND 6),
    mode smallint NOT NULL CHECK (mode IN (0, 1)),
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
    version bigint NOT NULL,
    ledger bigint NOT NULL CHECK (ledger BETWEEN 0 AND 999999999999999),
    guid bigint CHECK (guid BETWEEN 0 AND 999999999999999),
    owner bigint,
    ready_at bigint,
    timer_at bigint,
    lease_id bigint,
    lease_expires_at bigint,
    sent_at bigint,
    acked_at bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    completed_at bigint,
    step_index integer NOT NULL,
    turn integer NOT NULL DEFAULT 0,
    attempt_no integer NOT NULL CHECK (attempt_no > 0),
    children integer,
    closed_parked integer NOT NULL DEFAULT 0,
    publish_attempts integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,
    priority integer NOT NULL DEFAULT 0,
    state smallint NOT NULL CHECK (state BETWEEN 0 AND 8),
    ending smallint CHECK (ending BETWEEN 1 AND 10),
    outbox smallint CHECK (outbox BETWEEN 0 AND 2),
    content bytea,
    step_id text NOT NULL,
    step_type text NOT NULL,
    service text NOT NULL,
    claim_id text,
    progress text,
    error_code text,
    error_message text,
    output text,
    output_ref text,
    PRIMARY KEY (job_id, step_index, branch, turn, attempt_no)
) WITH (fillfactor = 50);

-- What can be claimed, and what must be looked at when its time has come. Nothing else is indexed that
-- changes, and the fast path touches neither column, so that its updates stay on their page.
CREATE INDEX attempt_ready ON sprag.attempt (service, ready_at, job_id) WHERE ready_at IS NOT NULL;
CREATE INDEX attempt_timer ON sprag.attempt (timer_at, job_id) WHERE timer_at IS NOT NULL;
-- What was handed out under a claim and not yet reported, so that the claim can be answered again.
CREATE INDEX attempt_claim ON sprag.attempt (claim_id)
WHERE claim_id IS NOT NULL AND timer_at IS NOT NULL;

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

-- What happened to a request by itself; the history of its runs is that of their jobs.
CREATE TABLE sprag.request_event (
    request_id uuid NOT NULL,
    at bigint NOT NULL,
    n integer NOT NULL,
    changes text NOT NULL,
    PRIMARY KEY (request_id, n)
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
