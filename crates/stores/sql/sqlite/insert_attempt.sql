-- Attempt 1 of a step is born with its job, PENDING.
INSERT INTO attempt (job_id, step_index, attempt_no, state, version, ledger, owner, ready_at, timer_at,
    created_at, updated_at, priority, step_id, step_type, service, countdown, delay_ms, gate, gate_max,
    gate_gap)
VALUES (?1, ?2, 1, 0, 1, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
