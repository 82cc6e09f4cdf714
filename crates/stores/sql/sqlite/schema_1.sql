-- Version 1 of the books. Times are milliseconds since 1970. States are the codes of the kernel's
-- tables; a test compares these CHECKs with them.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
-- There while the store takes envelopes.
INSERT INTO meta VALUES ('open', '');

-- One life of one engine process.
CREATE TABLE engine (
    engine_no INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    joined_at INTEGER NOT NULL,
    beat_at INTEGER NOT NULL,
    dead INTEGER NOT NULL DEFAULT 0 CHECK (dead IN (0, 1))
);

CREATE TABLE protocol (
    protocol_id TEXT PRIMARY KEY,
    definition TEXT NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE job (
    job_id BLOB PRIMARY KEY,
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 6),
    version INTEGER NOT NULL,
    semaphore INTEGER NOT NULL CHECK (semaphore >= 0),
    initial INTEGER NOT NULL CHECK (initial > 0),
    current_step INTEGER NOT NULL,
    steps INTEGER NOT NULL CHECK (steps > 0),
    attempts_total INTEGER NOT NULL DEFAULT 0,
    is_graph INTEGER NOT NULL DEFAULT 0 CHECK (is_graph IN (0, 1)),
    verdict INTEGER CHECK (verdict IN (5, 6)),
    events INTEGER NOT NULL DEFAULT 0,
    last_event INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    completed_at INTEGER CHECK ((completed_at IS NOT NULL) = (state >= 4)),
    tenant_id TEXT NOT NULL,
    request_type TEXT NOT NULL,
    protocol_id TEXT NOT NULL REFERENCES protocol,
    era INTEGER NOT NULL DEFAULT 0,
    dedup_key TEXT NOT NULL,
    idempotency_key TEXT,
    idempotency_hash BLOB NOT NULL,
    mode INTEGER NOT NULL CHECK (mode IN (0, 1)),
    doc_id TEXT,
    lane INTEGER NOT NULL CHECK (lane BETWEEN 0 AND 15),
    routing_key TEXT NOT NULL,
    priority INTEGER NOT NULL DEFAULT 0,
    correlation_id TEXT,
    traceparent TEXT,
    rerun_of BLOB,
    error_code TEXT,
    error_message TEXT,
    schema_version TEXT NOT NULL,
    input_ref TEXT NOT NULL,
    output_ref TEXT NOT NULL,
    payload TEXT NOT NULL,
    -- The era first: new keys stand together, however many there are. Then the key: two of them differ at once, where
    -- all of a tenant would have to be compared as a whole.
    UNIQUE (era, dedup_key, tenant_id)
) WITHOUT ROWID;

-- Some thousand keys that were added one after the other. New ones go to the newest era, by who is named there and has
-- read all keys; older eras have a filter that says which keys they may have.
CREATE TABLE era (
    era INTEGER PRIMARY KEY,
    writer INTEGER NOT NULL,
    filter BLOB
);
INSERT INTO era (era, writer) VALUES (0, 0);

-- One row per attempt, never reset: activation, activity ledger, fence, outbox entry, and the message
-- that ends it with its GUID ledger. A step is its newest attempt. A row whose countdown is above 0 is
-- parked: it waits for so many others to end, and is an obligation meanwhile.
CREATE TABLE attempt (
    job_id BLOB NOT NULL,
    step_index INTEGER NOT NULL,
    branch INTEGER NOT NULL DEFAULT 0,
    turn INTEGER NOT NULL DEFAULT 0,
    attempt_no INTEGER NOT NULL CHECK (attempt_no > 0),
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 8),
    version INTEGER NOT NULL,
    ledger INTEGER NOT NULL CHECK (ledger BETWEEN 0 AND 999999999999999),
    guid INTEGER CHECK (guid BETWEEN 0 AND 999999999999999),
    ending INTEGER CHECK (ending BETWEEN 1 AND 11),
    content BLOB,
    children INTEGER,
    closed_parked INTEGER NOT NULL DEFAULT 0,
    countdown INTEGER NOT NULL DEFAULT 0 CHECK (countdown >= 0),
    delay_ms INTEGER NOT NULL DEFAULT 0,
    waits_for TEXT,
    waits_until INTEGER,
    owner INTEGER,
    ready_at INTEGER,
    timer_at INTEGER,
    gate TEXT,
    gate_max INTEGER CHECK (gate_max > 0),
    gate_gap INTEGER CHECK (gate_gap > 0),
    admitted_at INTEGER CHECK (admitted_at IS NULL OR gate IS NOT NULL),
    lease_id INTEGER,
    lease_expires_at INTEGER,
    outbox INTEGER CHECK (outbox BETWEEN 0 AND 2),
    publish_attempts INTEGER NOT NULL DEFAULT 0,
    sent_at INTEGER,
    acked_at INTEGER,
    losses INTEGER NOT NULL DEFAULT 0,
    excused INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    completed_at INTEGER,
    priority INTEGER NOT NULL DEFAULT 0,
    step_id TEXT NOT NULL,
    step_type TEXT NOT NULL,
    service TEXT NOT NULL,
    claim_id TEXT,
    progress TEXT,
    error_code TEXT,
    error_message TEXT,
    output TEXT,
    output_ref TEXT,
    item TEXT,
    child_id BLOB,
    PRIMARY KEY (job_id, step_index, branch, turn, attempt_no)
) WITHOUT ROWID;

-- What can be claimed, and what must be looked at when its time has come. Nothing else is indexed that
-- changes.
CREATE INDEX attempt_ready ON attempt (service, ready_at)
WHERE ready_at IS NOT NULL AND (gate IS NULL OR admitted_at IS NOT NULL);
CREATE INDEX attempt_timer ON attempt (timer_at) WHERE timer_at IS NOT NULL;
-- An attempt with a gate that is due stands in line there until it is admitted, and then holds its slot until
-- it is over. Claims see neither the line nor how long it is.
CREATE INDEX attempt_line ON attempt (gate, ready_at)
WHERE ready_at IS NOT NULL AND gate IS NOT NULL AND admitted_at IS NULL;
CREATE INDEX attempt_admitted ON attempt (gate) WHERE admitted_at IS NOT NULL;
-- What was handed out under a claim and not yet reported, so that the claim can be answered again.
CREATE INDEX attempt_claim ON attempt (claim_id) WHERE claim_id IS NOT NULL AND timer_at IS NOT NULL;

-- What engines hold, so that what a dead one held is found at once, however much there is.
CREATE INDEX attempt_owner ON attempt (owner) WHERE owner IS NOT NULL;
-- Steps that wait, or have waited, for a signal.
CREATE INDEX attempt_waits ON attempt (job_id, waits_for) WHERE waits_for IS NOT NULL;

-- What somebody has said to a job. It goes to one wait, and no wait is given two.
CREATE TABLE signal (
    job_id BLOB NOT NULL,
    n INTEGER NOT NULL CHECK (n > 0),
    signal_id TEXT NOT NULL,
    name TEXT NOT NULL,
    decision INTEGER NOT NULL CHECK (decision IN (0, 1)),
    content BLOB NOT NULL,
    payload TEXT NOT NULL,
    said_by TEXT,
    reason TEXT,
    received_at INTEGER NOT NULL,
    step_index INTEGER,
    branch INTEGER CHECK ((branch IS NULL) = (step_index IS NULL)),
    turn INTEGER CHECK ((turn IS NULL) = (step_index IS NULL)),
    PRIMARY KEY (job_id, n),
    UNIQUE (job_id, signal_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX signal_taken ON signal (job_id, step_index, branch, turn)
WHERE step_index IS NOT NULL;

-- Callbacks that changed nothing: the last of each kind at a step, and how many there were.
CREATE TABLE stale (
    job_id BLOB NOT NULL,
    step_index INTEGER NOT NULL,
    branch INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    callback TEXT NOT NULL,
    code TEXT NOT NULL,
    attempt_no INTEGER NOT NULL,
    lease_id INTEGER NOT NULL,
    times INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (job_id, step_index, branch, turn, callback, code)
) WITHOUT ROWID;

-- Envelopes that users write inside of their own transactions, and those of ticks, which say by what key their
-- job is known. An engine turns each into a job, in the transaction that marks the row with it, or notes why
-- there is none.
CREATE TABLE inbox (
    inbox_id INTEGER PRIMARY KEY AUTOINCREMENT,
    envelope TEXT NOT NULL,
    submitted_at INTEGER NOT NULL,
    taken_at INTEGER,
    job_id BLOB,
    dedup_key TEXT,
    error_code TEXT,
    error_message TEXT
);
CREATE INDEX inbox_waiting ON inbox (inbox_id) WHERE taken_at IS NULL;

-- Jobs by the clock. A tick moves the row on and lays its envelope into the inbox, in one transaction.
CREATE TABLE schedule (
    tenant_id TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    cron TEXT NOT NULL,
    zone TEXT NOT NULL,
    missed INTEGER NOT NULL CHECK (missed BETWEEN 0 AND 2),
    envelope TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    next_at INTEGER CHECK (next_at > last_tick),
    last_tick INTEGER,
    paused_at INTEGER,
    PRIMARY KEY (tenant_id, schedule_id)
) WITHOUT ROWID;
CREATE INDEX schedule_next ON schedule (next_at) WHERE next_at IS NOT NULL AND paused_at IS NULL;

-- What happened, in the commit in which it happened. Numbers are dense per job; one row may hold
-- several changes. Positions are in commit order. The events of a job are a chain: the job has the position of the
-- newest one, and each has that of the one before it. An index of them all would be written all over; one of
-- every 64th is enough to begin a page near its end.
CREATE TABLE event (
    pos INTEGER PRIMARY KEY,
    job_id BLOB NOT NULL,
    before INTEGER,
    n INTEGER NOT NULL,
    at INTEGER NOT NULL,
    step_index INTEGER,
    branch INTEGER NOT NULL DEFAULT 0,
    turn INTEGER NOT NULL DEFAULT 0,
    attempt_no INTEGER,
    changes TEXT NOT NULL,
    note TEXT
);
CREATE UNIQUE INDEX event_milestone ON event (job_id, n) WHERE n % 64 = 0;

-- What somebody asked for. The status is how far it came by itself; with a job it is the job's. A run has
-- a number and a job, and begins only when the plan is frozen.
CREATE TABLE request (
    request_id BLOB PRIMARY KEY,
    status INTEGER NOT NULL CHECK (status BETWEEN 0 AND 2),
    version INTEGER NOT NULL,
    run_no INTEGER NOT NULL CHECK ((run_no > 0) = (job_id IS NOT NULL)),
    job_id BLOB CHECK (job_id IS NULL OR status = 2),
    events INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    request_type TEXT NOT NULL,
    request_key BLOB NOT NULL,
    content_hash BLOB NOT NULL,
    plan_revision TEXT NOT NULL,
    requirement TEXT NOT NULL,
    inputs TEXT NOT NULL,
    envelope TEXT NOT NULL,
    protocol_id TEXT,
    draft TEXT,
    UNIQUE (tenant_id, request_type, request_key)
) WITHOUT ROWID;
-- Whether a job is the current run of one.
CREATE INDEX request_run ON request (job_id) WHERE job_id IS NOT NULL;

-- What happened to a request by itself; the history of its runs is that of their jobs.
CREATE TABLE request_event (
    request_id BLOB NOT NULL,
    n INTEGER NOT NULL,
    at INTEGER NOT NULL,
    changes TEXT NOT NULL,
    PRIMARY KEY (request_id, n)
) WITHOUT ROWID;

-- Services that nothing is claimed or entered of; one that is not paused has no row.
CREATE TABLE service (
    service TEXT PRIMARY KEY,
    paused_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Services that an engine or a worker has offered itself for, and when last: who waits for another one waits
-- for somebody to come.
CREATE TABLE served (
    service TEXT PRIMARY KEY,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Tenants that may have so many open jobs; one without a limit has no row, and none of its jobs writes
-- here. Child jobs are part of their parent and do not count.
CREATE TABLE tenant (
    tenant_id TEXT PRIMARY KEY,
    max_open INTEGER NOT NULL CHECK (max_open >= 0),
    open_jobs INTEGER NOT NULL CHECK (open_jobs >= 0)
) WITHOUT ROWID;

-- Gates with a rate: no start before this time, in microseconds. One whose time has passed needs no row.
CREATE TABLE gate (
    gate TEXT PRIMARY KEY,
    arrival_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX gate_arrival ON gate (arrival_us);

-- What the closing commit of a job has left to do for the world outside: recorded once, delivered at least
-- once. The time is when to deliver it, or to deliver it again if its deliverer is not heard of.
CREATE TABLE completion (
    job_id BLOB NOT NULL,
    task TEXT NOT NULL,
    deliveries INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER,
    owner INTEGER,
    created_at INTEGER NOT NULL,
    delivered_at INTEGER,
    error_message TEXT,
    PRIMARY KEY (job_id, task),
    CHECK ((due_at IS NULL) = (delivered_at IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX completion_due ON completion (task, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX completion_owner ON completion (owner) WHERE owner IS NOT NULL;

-- What is left of a job that retention has deleted: its dedup key answers for it.
CREATE TABLE retired (
    era INTEGER NOT NULL DEFAULT 0,
    tenant_id TEXT NOT NULL,
    dedup_key TEXT NOT NULL,
    idempotency_hash BLOB NOT NULL,
    job_id BLOB NOT NULL,
    state INTEGER NOT NULL CHECK (state BETWEEN 4 AND 6),
    retired_at INTEGER NOT NULL,
    PRIMARY KEY (era, dedup_key, tenant_id)
) WITHOUT ROWID;
CREATE INDEX retired_at ON retired (retired_at);

-- A batch step: how far it is, what that amounts to, and the fence: the attempt that may move it, and where the
-- cursor was when that attempt took it up.
CREATE TABLE batch (
    job_id BLOB NOT NULL,
    step_index INTEGER NOT NULL,
    branch INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    attempt_no INTEGER NOT NULL,
    lease_id INTEGER NOT NULL,
    opened INTEGER NOT NULL DEFAULT 0,
    cursor INTEGER NOT NULL CHECK (cursor = success + skip + fail + cancel AND cursor >= opened),
    success INTEGER NOT NULL,
    skip INTEGER NOT NULL,
    fail INTEGER NOT NULL,
    cancel INTEGER NOT NULL,
    first_failed INTEGER CHECK ((first_failed IS NULL) = (fail = 0)),
    total INTEGER CHECK (cursor <= total),
    out_bytes INTEGER NOT NULL,
    outcome_hash INTEGER NOT NULL,
    input_hash BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, step_index, branch, turn)
) WITHOUT ROWID;

-- What one commit of a batch has added to it: a contiguous run of outcomes and outputs.
CREATE TABLE batch_journal (
    job_id BLOB NOT NULL,
    step_index INTEGER NOT NULL,
    branch INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    seqs INTEGER NOT NULL CHECK (seqs > 0),
    at INTEGER NOT NULL,
    outcomes TEXT NOT NULL,
    notes TEXT NOT NULL,
    outputs TEXT NOT NULL,
    PRIMARY KEY (job_id, step_index, branch, turn, first_seq)
);

-- How many jobs are in which state, so that counting reads a handful of rows. A transaction adds to it what it
-- has done to jobs.
CREATE TABLE job_count (
    shard INTEGER NOT NULL,
    state INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (shard, state)
) WITHOUT ROWID;

-- Who may do what. Only the hash of a token is kept.
CREATE TABLE token (
    token_id TEXT PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    scopes INTEGER NOT NULL CHECK (scopes BETWEEN 1 AND 15),
    tenant_id TEXT,
    label TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) WITHOUT ROWID;

-- A commit of a batch, as one statement: an INSERT here. The guard is the trigger's WHEN: the cursor, the
-- fence, and an attempt that goes on. Without seqs there is no journal row; with an ending the attempt ends.
CREATE VIEW batch_op AS
SELECT NULL AS job_id, NULL AS step_index, NULL AS branch, NULL AS turn, NULL AS attempt_no,
    NULL AS lease_id, NULL AS from_cursor, NULL AS now, NULL AS cursor, NULL AS success, NULL AS skip,
    NULL AS fail, NULL AS cancel, NULL AS first_failed, NULL AS total, NULL AS out_bytes,
    NULL AS outcome_hash, NULL AS input_hash, NULL AS seqs, NULL AS outcomes, NULL AS notes,
    NULL AS outputs, NULL AS attempt_version, NULL AS ending, NULL AS guid, NULL AS content,
    NULL AS ledger, NULL AS owner, NULL AS output, NULL AS error_code, NULL AS error_message;

CREATE TRIGGER batch_op_insert INSTEAD OF INSERT ON batch_op
WHEN (SELECT b.attempt_no = NEW.attempt_no AND b.lease_id = NEW.lease_id AND b.cursor = NEW.from_cursor
        AND a.lease_id = NEW.lease_id AND a.ending IS NULL
        AND (NEW.ending IS NULL
            OR a.version = NEW.attempt_version AND a.ledger / 100000000000 % 10 = 1)
    FROM batch b JOIN attempt a ON a.job_id = b.job_id AND a.step_index = b.step_index
        AND a.branch = b.branch AND a.turn = b.turn AND a.attempt_no = b.attempt_no
    WHERE b.job_id = NEW.job_id AND b.step_index = NEW.step_index AND b.branch = NEW.branch
        AND b.turn = NEW.turn)
BEGIN
    UPDATE batch SET cursor = NEW.cursor, success = NEW.success, skip = NEW.skip, fail = NEW.fail,
        cancel = NEW.cancel, first_failed = NEW.first_failed, total = NEW.total,
        out_bytes = NEW.out_bytes, outcome_hash = NEW.outcome_hash, input_hash = NEW.input_hash,
        updated_at = NEW.now
    WHERE job_id = NEW.job_id AND step_index = NEW.step_index AND branch = NEW.branch
        AND turn = NEW.turn;

    INSERT INTO batch_journal (job_id, step_index, branch, turn, first_seq, seqs, at, outcomes, notes,
        outputs)
    SELECT NEW.job_id, NEW.step_index, NEW.branch, NEW.turn, NEW.from_cursor, NEW.seqs, NEW.now,
        NEW.outcomes, NEW.notes, NEW.outputs
    WHERE NEW.seqs IS NOT NULL;

    UPDATE attempt SET ending = NEW.ending, guid = NEW.guid, content = NEW.content, ledger = NEW.ledger,
        owner = NEW.owner, output = NEW.output, error_code = NEW.error_code,
        error_message = NEW.error_message, timer_at = NULL, version = version + 1, updated_at = NEW.now
    WHERE NEW.ending IS NOT NULL AND job_id = NEW.job_id AND step_index = NEW.step_index
        AND branch = NEW.branch AND turn = NEW.turn AND attempt_no = NEW.attempt_no;
END;

-- Steps 1 to 3 of an ending message of a sequence, as one statement: an INSERT into one of three views. The guard is the
-- trigger's condition: it reads the row of the attempt, which is the message's too. What the digits and states become is
-- handed in, decided by the kernel.
-- A function in such a trigger, be it `changes()`, would have SQLite copy every page before it is written, since it takes
-- any function for one that can fail. And it makes ready for whatever a trigger can write, every time, which takes as long as
-- to write it: so what nearly all messages need stands by itself. They have succeeded, hold no slot of a gate, and nothing
-- follows, or the next step, entered for an engine that has a slot for it. With a range of one key SQLite writes a row
-- where it has found it; by an equation it would look for its place once more.
-- That the row of the job is as told is no condition of the trigger: if it is not, fewer rows are written than should be,
-- and `finish.rs`, which counts them, has the call taken back.
CREATE VIEW finish_op AS
SELECT NULL AS job_id, NULL AS step_index, NULL AS branch, NULL AS turn, NULL AS attempt_no, NULL AS attempt_version, NULL AS job_version,
    NULL AS now, NULL AS step_to, NULL AS ledger, NULL AS guid, NULL AS semaphore, NULL AS job_to,
    NULL AS completed_at, NULL AS engine_no, NULL AS event;

CREATE TRIGGER finish_op_insert INSTEAD OF INSERT ON finish_op
WHEN (SELECT version = NEW.attempt_version AND guid / 1000000000 % 10 = 0 AND admitted_at IS NULL FROM attempt
    WHERE job_id = NEW.job_id AND step_index = NEW.step_index AND branch = NEW.branch AND turn = NEW.turn
        AND attempt_no = NEW.attempt_no)
BEGIN
    UPDATE attempt SET state = NEW.step_to, ledger = NEW.ledger, guid = NEW.guid, children = 0,
        version = version + 1, owner = NULL, updated_at = NEW.now, completed_at = NEW.now
    WHERE job_id = NEW.job_id AND step_index = NEW.step_index AND branch = NEW.branch AND turn = NEW.turn
        AND attempt_no BETWEEN NEW.attempt_no AND NEW.attempt_no;

    UPDATE job SET state = NEW.job_to, semaphore = NEW.semaphore, version = version + 1, events = events + 1,
        last_event = NEW.event, updated_at = NEW.now, completed_at = NEW.completed_at
    WHERE job_id BETWEEN NEW.job_id AND NEW.job_id AND version = NEW.job_version AND semaphore > 0;
END;

-- The same for a message after which the next step is entered for an engine that has a slot for it.
CREATE VIEW advance_op AS SELECT * FROM finish_op;

CREATE TRIGGER advance_op_insert INSTEAD OF INSERT ON advance_op
WHEN (SELECT version = NEW.attempt_version AND guid / 1000000000 % 10 = 0 AND admitted_at IS NULL FROM attempt
    WHERE job_id = NEW.job_id AND step_index = NEW.step_index AND branch = NEW.branch AND turn = NEW.turn
        AND attempt_no = NEW.attempt_no)
BEGIN
    UPDATE attempt SET state = NEW.step_to, ledger = NEW.ledger, guid = NEW.guid, children = 1,
        version = version + 1, owner = NULL, updated_at = NEW.now, completed_at = NEW.now
    WHERE job_id = NEW.job_id AND step_index = NEW.step_index AND branch = NEW.branch AND turn = NEW.turn
        AND attempt_no BETWEEN NEW.attempt_no AND NEW.attempt_no;

    UPDATE job SET state = NEW.job_to, semaphore = NEW.semaphore, version = version + 1, events = events + 1,
        last_event = NEW.event, current_step = current_step + 1, updated_at = NEW.now
    WHERE job_id BETWEEN NEW.job_id AND NEW.job_id AND version = NEW.job_version AND semaphore > 0;

    UPDATE attempt SET version = version + 1, updated_at = NEW.now, ledger = ledger + 1000000000000,
        owner = NEW.engine_no
    WHERE job_id = NEW.job_id AND step_index = NEW.step_index + 1 AND branch = NEW.branch AND turn = NEW.turn
        AND attempt_no BETWEEN 1 AND 1;
END;

-- The same for every other message: it has failed or its job is being cancelled, it gives back a slot, another attempt
-- follows it, the next step goes to the queue, or there are completion tasks.
CREATE VIEW finish_more_op AS
SELECT NULL AS job_id, NULL AS step_index, NULL AS branch, NULL AS turn, NULL AS attempt_no, NULL AS attempt_version, NULL AS job_version,
    NULL AS now, NULL AS step_to, NULL AS ledger, NULL AS guid, NULL AS children, NULL AS semaphore,
    NULL AS job_to, NULL AS cancels_waiting, NULL AS follows, NULL AS enter_next, NULL AS engine_no,
    NULL AS ageing_ms, NULL AS due_at, NULL AS losses, NULL AS excused, NULL AS tasks, NULL AS event;

CREATE TRIGGER finish_more_op_insert INSTEAD OF INSERT ON finish_more_op
WHEN (SELECT a.version = NEW.attempt_version AND a.guid / 1000000000 % 10 = 0
        AND j.version = NEW.job_version AND j.semaphore > 0
    FROM attempt a JOIN job j ON j.job_id = a.job_id
    WHERE a.job_id = NEW.job_id AND a.step_index = NEW.step_index AND a.branch = NEW.branch AND a.turn = NEW.turn
        AND a.attempt_no = NEW.attempt_no)
BEGIN
    UPDATE attempt SET state = NEW.step_to, ledger = NEW.ledger, guid = NEW.guid,
        children = NEW.children, version = version + 1, owner = NULL, admitted_at = NULL,
        updated_at = NEW.now, completed_at = NEW.now
    WHERE job_id = NEW.job_id AND step_index = NEW.step_index AND branch = NEW.branch AND turn = NEW.turn
        AND attempt_no = NEW.attempt_no;

    UPDATE attempt SET version = version + 1, updated_at = NEW.now,
        ledger = ledger + NEW.enter_next * 1000000000000,
        owner = iif(NEW.enter_next, NEW.engine_no, NULL),
        ready_at = iif(NEW.enter_next, NULL, NEW.now - priority * NEW.ageing_ms)
    WHERE NEW.follows = 1 AND job_id = NEW.job_id AND step_index = NEW.step_index + 1
        AND branch = NEW.branch AND turn = NEW.turn AND attempt_no = 1;

    INSERT INTO attempt (job_id, step_index, branch, turn, attempt_no, state, version, ledger, losses, excused,
        timer_at, created_at, updated_at, priority, step_id, step_type, service, gate, gate_max, gate_gap)
    SELECT job_id, step_index, branch, turn, attempt_no + 1, NEW.step_to, 1, 0, NEW.losses, NEW.excused,
        NEW.due_at, NEW.now, NEW.now, priority, step_id, step_type, service, gate, gate_max, gate_gap
    FROM attempt
    WHERE NEW.follows = 2 AND job_id = NEW.job_id AND step_index = NEW.step_index AND branch = NEW.branch
        AND turn = NEW.turn AND attempt_no = NEW.attempt_no;

    UPDATE attempt SET state = NEW.cancels_waiting, version = version + 1, ready_at = NULL,
        timer_at = NULL, admitted_at = NULL, updated_at = NEW.now, completed_at = NEW.now
    WHERE NEW.cancels_waiting IS NOT NULL AND job_id = NEW.job_id AND state IN (0, 5)
        AND ending IS NULL;

    UPDATE job SET state = NEW.job_to, semaphore = NEW.semaphore, version = version + 1, events = events + 1,
        last_event = NEW.event, current_step = current_step + (NEW.follows = 1), updated_at = NEW.now,
        completed_at = iif(NEW.semaphore = 0, NEW.now, NULL),
        error_code = iif(NEW.semaphore = 0, (SELECT error_code FROM attempt a
            WHERE a.job_id = NEW.job_id AND a.step_index = NEW.step_index AND a.branch = NEW.branch
            AND a.turn = NEW.turn AND a.attempt_no = NEW.attempt_no), NULL),
        error_message = iif(NEW.semaphore = 0, (SELECT error_message FROM attempt a
            WHERE a.job_id = NEW.job_id AND a.step_index = NEW.step_index AND a.branch = NEW.branch
            AND a.turn = NEW.turn AND a.attempt_no = NEW.attempt_no), NULL)
    WHERE job_id = NEW.job_id;

    -- Keys of children begin with 'c:'.
    UPDATE tenant SET open_jobs = open_jobs - 1
    WHERE NEW.semaphore = 0 AND tenant_id = (SELECT tenant_id FROM job
        WHERE job_id = NEW.job_id AND dedup_key NOT BETWEEN 'c:' AND 'c;');

    INSERT INTO completion (job_id, task, due_at, created_at)
    SELECT NEW.job_id, value, NEW.now, NEW.now FROM json_each(NEW.tasks)
    WHERE NEW.semaphore = 0 AND NEW.tasks IS NOT NULL;
END;

-- The same for a message of a graph. Which plan it takes is found in the writer's transaction. What its end
-- opens and counts down comes as JSON: places as [step_index, branch, turn], new rows as [step_index,
-- branch, turn, item, is_open, countdown, priority, delay_ms, step_id, step_type, service, gate, gate_max,
-- gate_gap]. If the job is ending, `closes_to` is what every obligation becomes that nobody has begun, and with `closes_all` every
-- step that waits at all.
CREATE VIEW finish_graph_op AS
SELECT NULL AS job_id, NULL AS step_index, NULL AS branch, NULL AS turn, NULL AS attempt_no,
    NULL AS attempt_version, NULL AS job_version, NULL AS now, NULL AS step_to, NULL AS ledger,
    NULL AS guid, NULL AS children, NULL AS closed, NULL AS semaphore, NULL AS job_to, NULL AS verdict,
    NULL AS closes_to, NULL AS closes_all, NULL AS activates, NULL AS counts_down, NULL AS lets_in,
    NULL AS inserts, NULL AS due_at, NULL AS losses, NULL AS excused, NULL AS ageing_ms, NULL AS changes, NULL AS tasks,
    NULL AS closes_outbox_to, NULL AS event;

CREATE TRIGGER finish_graph_op_insert INSTEAD OF INSERT ON finish_graph_op
WHEN (SELECT a.version = NEW.attempt_version AND a.guid / 1000000000 % 10 = 0
        AND j.version = NEW.job_version AND j.semaphore > 0
    FROM attempt a JOIN job j ON j.job_id = a.job_id
    WHERE a.job_id = NEW.job_id AND a.step_index = NEW.step_index AND a.branch = NEW.branch
        AND a.turn = NEW.turn AND a.attempt_no = NEW.attempt_no)
BEGIN
    UPDATE attempt SET state = NEW.step_to, ledger = NEW.ledger, guid = NEW.guid,
        children = NEW.children, closed_parked = NEW.closed, version = version + 1, owner = NULL,
        admitted_at = NULL,
        updated_at = NEW.now, completed_at = NEW.now
    WHERE job_id = NEW.job_id AND step_index = NEW.step_index AND branch = NEW.branch
        AND turn = NEW.turn AND attempt_no = NEW.attempt_no;

    UPDATE attempt SET version = version + 1, updated_at = NEW.now,
        ready_at = iif(delay_ms = 0, NEW.now - priority * NEW.ageing_ms, NULL),
        timer_at = iif(delay_ms = 0, NULL, NEW.now + delay_ms)
    WHERE (job_id, step_index, branch, turn, attempt_no) IN (
        SELECT NEW.job_id, value ->> 0, value ->> 1, value ->> 2, 1 FROM json_each(NEW.activates));

    -- Two statements: SQLite looks a list of keys up by the primary key only if it is one SELECT.
    UPDATE attempt SET version = version + 1, updated_at = NEW.now, countdown = countdown - 1,
        ready_at = iif(countdown = 1 AND delay_ms = 0, NEW.now - priority * NEW.ageing_ms, NULL),
        timer_at = iif(countdown = 1 AND delay_ms > 0, NEW.now + delay_ms, NULL)
    WHERE (job_id, step_index, branch, turn, attempt_no) IN (
        SELECT NEW.job_id, value ->> 0, value ->> 1, value ->> 2, 1 FROM json_each(NEW.counts_down));

    UPDATE attempt SET version = version + 1, updated_at = NEW.now, countdown = countdown - 1,
        ready_at = iif(countdown = 1 AND delay_ms = 0, NEW.now - priority * NEW.ageing_ms, NULL),
        timer_at = iif(countdown = 1 AND delay_ms > 0, NEW.now + delay_ms, NULL)
    WHERE (job_id, step_index, branch, turn, attempt_no) IN (
        SELECT NEW.job_id, value ->> 0, value ->> 1, value ->> 2, 1 FROM json_each(NEW.lets_in));

    INSERT INTO attempt (job_id, step_index, branch, turn, attempt_no, state, version, ledger, item,
        countdown, ready_at, timer_at, priority, delay_ms, step_id, step_type, service, created_at,
        updated_at, gate, gate_max, gate_gap)
    SELECT NEW.job_id, value ->> 0, value ->> 1, value ->> 2, 1, 0, 1, 0, value ->> 3, value ->> 5,
        iif(value ->> 4 AND value ->> 5 = 0 AND value ->> 7 = 0,
            NEW.now - (value ->> 6) * NEW.ageing_ms, NULL),
        iif(value ->> 4 AND value ->> 5 = 0 AND value ->> 7 > 0, NEW.now + (value ->> 7), NULL),
        value ->> 6, value ->> 7, value ->> 8, value ->> 9, value ->> 10, NEW.now, NEW.now,
        value ->> 11, value ->> 12, value ->> 13
    FROM json_each(NEW.inserts);

    INSERT INTO attempt (job_id, step_index, branch, turn, attempt_no, state, version, ledger, losses, excused,
        timer_at, created_at, updated_at, priority, delay_ms, waits_until, item, step_id, step_type, service,
        gate, gate_max, gate_gap)
    SELECT job_id, step_index, branch, turn, attempt_no + 1, NEW.step_to, 1, 0, NEW.losses, NEW.excused,
        NEW.due_at, NEW.now, NEW.now, priority, delay_ms, waits_until, item, step_id, step_type, service,
        gate, gate_max, gate_gap
    FROM attempt
    WHERE NEW.due_at IS NOT NULL AND job_id = NEW.job_id AND step_index = NEW.step_index
        AND branch = NEW.branch AND turn = NEW.turn AND attempt_no = NEW.attempt_no;

    UPDATE attempt SET state = NEW.closes_to, outbox = iif(outbox IS NULL, NULL, NEW.closes_outbox_to),
        version = version + 1, ready_at = NULL, timer_at = NULL, owner = NULL, countdown = 0,
        admitted_at = NULL, updated_at = NEW.now, completed_at = NEW.now
    WHERE NEW.closes_to IS NOT NULL AND job_id = NEW.job_id AND state IN (0, 1, 5) AND ending IS NULL
        AND (NEW.closes_all OR ready_at IS NOT NULL OR timer_at IS NOT NULL OR owner IS NOT NULL
            OR countdown > 0 OR ledger >= 1000000000000);

    INSERT INTO event (pos, job_id, before, n, at, step_index, branch, turn, attempt_no, changes)
    SELECT NEW.event, job_id, last_event, events + 1, NEW.now, NEW.step_index, NEW.branch, NEW.turn,
        NEW.attempt_no, NEW.changes
    FROM job WHERE job_id = NEW.job_id;

    UPDATE job SET state = NEW.job_to, semaphore = NEW.semaphore, version = version + 1,
        events = events + 1, last_event = NEW.event, updated_at = NEW.now,
        completed_at = iif(NEW.semaphore = 0, NEW.now, NULL),
        verdict = coalesce(verdict, NEW.verdict),
        error_code = iif(NEW.verdict IS NULL, error_code, (SELECT error_code FROM attempt a
            WHERE a.job_id = NEW.job_id AND a.step_index = NEW.step_index AND a.branch = NEW.branch
            AND a.turn = NEW.turn AND a.attempt_no = NEW.attempt_no)),
        error_message = iif(NEW.verdict IS NULL, error_message, (SELECT error_message FROM attempt a
            WHERE a.job_id = NEW.job_id AND a.step_index = NEW.step_index AND a.branch = NEW.branch
            AND a.turn = NEW.turn AND a.attempt_no = NEW.attempt_no))
    WHERE job_id = NEW.job_id;

    UPDATE tenant SET open_jobs = open_jobs - 1
    WHERE NEW.semaphore = 0 AND tenant_id = (SELECT tenant_id FROM job
        WHERE job_id = NEW.job_id AND substr(dedup_key, 1, 2) <> 'c:');

    INSERT INTO completion (job_id, task, due_at, created_at)
    SELECT NEW.job_id, value, NEW.now, NEW.now FROM json_each(NEW.tasks) WHERE NEW.semaphore = 0;
END;
