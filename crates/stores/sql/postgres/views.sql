-- The books as people and tools like to read them: a step is its newest attempt, shown as attempt 0 until
-- its first directive is written; an outbox entry is the part of an attempt that was or is to be published, and its
-- payload is the job's: the directive is made of the row, the job and the outputs before it when it is published.
-- A workspace_ref is the directive's without the root, which is a setting of the engine. The current step is that
-- of a sequence; a graph may be at many. Names of states are those of the kernel's tables; a test compares them.

-- A name as one part of a path, as the engine writes it: what is not a letter, a digit or one of -_~ and what is not
-- a dot behind one of those is % and two digits per byte.
CREATE FUNCTION sprag.segment(name text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(CASE WHEN c.letter ~ '[-A-Za-z0-9_~]' OR (c.letter = '.' AND c.n > 0) THEN c.letter
        ELSE '%' || lpad(to_hex(c.byte), 2, '0') END, '' ORDER BY c.n)
    FROM (SELECT n, b.byte, CASE WHEN b.byte BETWEEN 1 AND 127 THEN chr(b.byte) ELSE '' END AS letter
        FROM generate_series(0, octet_length(convert_to(name, 'UTF8')) - 1) AS n,
            LATERAL (SELECT get_byte(convert_to(name, 'UTF8'), n) AS byte) AS b) AS c
$$;

CREATE VIEW sprag.job_view AS
SELECT j.job_id, j.tenant_id, j.request_type, j.protocol_id,
    CASE j.mode WHEN 0 THEN 'DEFAULT' WHEN 1 THEN 'BURST' END AS mode, j.doc_id,
    CASE j.state WHEN 0 THEN 'QUEUED' WHEN 1 THEN 'DISPATCHING' WHEN 2 THEN 'IN_PROGRESS'
        WHEN 3 THEN 'CANCELLING' WHEN 4 THEN 'SUCCEEDED' WHEN 5 THEN 'FAILED_FINAL'
        WHEN 6 THEN 'CANCELLED' END AS state, j.version, j.idempotency_key, j.idempotency_hash,
    CASE WHEN j.is_graph = 0 THEN (SELECT a.step_id FROM sprag.attempt a
        WHERE a.job_id = j.job_id AND a.step_index = j.current_step LIMIT 1) END AS current_step_id,
    CASE WHEN j.is_graph = 0 THEN j.current_step END AS current_step_index,
    j.attempts_total, j.created_at, j.updated_at, j.completed_at, j.error_code, j.error_message,
    j.correlation_id, j.traceparent
FROM sprag.job j;

CREATE VIEW sprag.step AS
SELECT a.job_id, a.step_index, a.branch, a.turn, a.step_id, a.step_type, a.service,
    CASE a.state WHEN 0 THEN 'PENDING' WHEN 1 THEN 'DISPATCHING' WHEN 2 THEN 'AWAITING_ACK'
        WHEN 3 THEN 'IN_PROGRESS' WHEN 4 THEN 'SUCCEEDED' WHEN 5 THEN 'FAILED_RETRY'
        WHEN 6 THEN 'FAILED_FINAL' WHEN 7 THEN 'CANCELLED' WHEN 8 THEN 'SKIPPED' END AS state,
    a.attempt_no - CASE WHEN a.lease_id IS NULL THEN 1 ELSE 0 END AS attempt_no, a.version,
    a.lease_id, a.lease_expires_at, j.input_ref,
    CASE WHEN a.lease_id IS NOT NULL THEN sprag.segment(j.tenant_id) || '/' || j.job_id::text || '/'
        || sprag.segment(a.step_id) || '/' || a.attempt_no END AS workspace_ref,
    coalesce(a.output_ref, j.output_ref) AS output_ref, j.payload, a.output,
    CASE j.mode WHEN 0 THEN 'DEFAULT' WHEN 1 THEN 'BURST' END AS resolved_mode, j.lane,
    j.routing_key AS routing_key_used, 'envelope' AS decision_source,
    CASE j.mode WHEN 0 THEN 'mode DEFAULT routes by tenant'
        WHEN 1 THEN 'mode BURST routes by tenant and document' END AS decision_reason,
    coalesce(a.error_code, b.error_code) AS last_error_code,
    CASE WHEN a.error_code IS NULL THEN b.error_message ELSE a.error_message END AS last_error_message,
    a.ledger, a.guid, a.created_at, a.updated_at, a.completed_at
FROM sprag.attempt a JOIN sprag.job j ON j.job_id = a.job_id
    LEFT JOIN sprag.attempt b ON b.job_id = a.job_id AND b.step_index = a.step_index
        AND b.branch = a.branch AND b.turn = a.turn AND b.attempt_no = a.attempt_no - 1
WHERE NOT EXISTS (SELECT 1 FROM sprag.attempt c WHERE c.job_id = a.job_id AND c.step_index = a.step_index
    AND c.branch = a.branch AND c.turn = a.turn AND c.attempt_no = a.attempt_no + 1);

CREATE VIEW sprag.outbox AS
SELECT j.job_id::text || '/' || a.step_index || '/' || a.branch || '/' || a.turn || '/' || a.attempt_no AS outbox_id,
    a.job_id, a.step_index, a.branch, a.turn, a.attempt_no, a.step_id, a.lease_id, a.version,
    CASE a.outbox WHEN 0 THEN 'PENDING' WHEN 1 THEN 'SENT' WHEN 2 THEN 'FAILED_FINAL' END AS state,
    a.publish_attempts AS attempts, CASE WHEN a.outbox = 0 THEN a.timer_at END AS not_before,
    CASE WHEN a.outbox = 2 THEN CASE WHEN a.ending IS NULL OR a.ending = 10 THEN 'cancelled'
        ELSE a.error_code END END AS reason,
    a.service AS topic, j.lane AS partition, j.payload,
    CASE j.mode WHEN 0 THEN 'DEFAULT' WHEN 1 THEN 'BURST' END AS resolved_mode, j.lane,
    j.routing_key AS routing_key_used, 'envelope' AS decision_source,
    CASE j.mode WHEN 0 THEN 'mode DEFAULT routes by tenant'
        WHEN 1 THEN 'mode BURST routes by tenant and document' END AS decision_reason,
    a.created_at, a.sent_at, a.updated_at
FROM sprag.attempt a JOIN sprag.job j ON j.job_id = a.job_id
WHERE a.outbox IS NOT NULL;
