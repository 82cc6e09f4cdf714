-- The books as people and tools like to read them: a step is its newest attempt, shown as attempt 0 until
-- its first directive is written; an outbox entry is the part of an attempt that was or is to be published.
-- Names of states are those of the kernel's tables; a test compares them.

CREATE VIEW step AS
SELECT a.job_id, a.step_index, a.branch, a.turn, a.step_id, a.step_type, a.service,
    CASE a.state WHEN 0 THEN 'PENDING' WHEN 1 THEN 'DISPATCHING' WHEN 2 THEN 'AWAITING_ACK'
        WHEN 3 THEN 'IN_PROGRESS' WHEN 4 THEN 'SUCCEEDED' WHEN 5 THEN 'FAILED_RETRY'
        WHEN 6 THEN 'FAILED_FINAL' WHEN 7 THEN 'CANCELLED' WHEN 8 THEN 'SKIPPED' END AS state,
    a.attempt_no - CASE WHEN a.lease_id IS NULL THEN 1 ELSE 0 END AS attempt_no, a.version,
    a.lease_id, a.lease_expires_at, j.input_ref,
    CASE WHEN a.lease_id IS NOT NULL THEN j.tenant_id || '/' || substr(lower(hex(j.job_id)), 1, 8) || '-' || substr(lower(hex(j.job_id)), 9, 4) || '-' || substr(lower(hex(j.job_id)), 13, 4) || '-'
        || substr(lower(hex(j.job_id)), 17, 4) || '-' || substr(lower(hex(j.job_id)), 21) || '/' || a.step_id || '/'
        || a.attempt_no END AS workspace_ref,
    coalesce(a.output_ref, j.output_ref) AS output_ref, j.payload, a.output,
    CASE j.mode WHEN 0 THEN 'DEFAULT' WHEN 1 THEN 'BURST' END AS resolved_mode, j.lane,
    j.routing_key AS routing_key_used, 'envelope' AS decision_source,
    CASE j.mode WHEN 0 THEN 'mode DEFAULT routes by tenant'
        WHEN 1 THEN 'mode BURST routes by tenant and document' END AS decision_reason,
    coalesce(a.error_code, b.error_code) AS last_error_code,
    CASE WHEN a.error_code IS NULL THEN b.error_message ELSE a.error_message END AS last_error_message,
    a.ledger, a.guid, a.created_at, a.updated_at, a.completed_at
FROM attempt a JOIN job j ON j.job_id = a.job_id
    LEFT JOIN attempt b ON b.job_id = a.job_id AND b.step_index = a.step_index
        AND b.branch = a.branch AND b.turn = a.turn AND b.attempt_no = a.attempt_no - 1
WHERE NOT EXISTS (SELECT 1 FROM attempt c WHERE c.job_id = a.job_id AND c.step_index = a.step_index
    AND c.branch = a.branch AND c.turn = a.turn AND c.attempt_no = a.attempt_no + 1);

CREATE VIEW outbox AS
SELECT a.job_id, a.step_index, a.branch, a.turn, a.attempt_no, a.step_id, a.lease_id, a.version,
    CASE a.outbox WHEN 0 THEN 'PENDING' WHEN 1 THEN 'SENT' WHEN 2 THEN 'FAILED_FINAL' END AS state,
    a.publish_attempts AS attempts, CASE WHEN a.outbox = 0 THEN a.timer_at END AS not_before,
    CASE WHEN a.outbox = 2 THEN CASE WHEN a.ending IS NULL OR a.ending = 10 THEN 'cancelled'
        ELSE a.error_code END END AS reason,
    a.service AS topic, j.lane AS partition_no, j.payload,
    CASE j.mode WHEN 0 THEN 'DEFAULT' WHEN 1 THEN 'BURST' END AS resolved_mode, j.lane,
    j.routing_key AS routing_key_used, 'envelope' AS decision_source,
    CASE j.mode WHEN 0 THEN 'mode DEFAULT routes by tenant'
        WHEN 1 THEN 'mode BURST routes by tenant and document' END AS decision_reason,
    a.created_at, a.sent_at, a.updated_at
FROM attempt a JOIN job j ON j.job_id = a.job_id
WHERE a.outbox IS NOT NULL;
