-- A job is born QUEUED with its first obligations and its first event.
INSERT INTO job (job_id, state, version, semaphore, initial, current_step, steps, events, created_at,
    updated_at, tenant_id, request_type, protocol_id, dedup_key, idempotency_key, idempotency_hash,
    mode, doc_id, lane, routing_key, priority, correlation_id, traceparent, rerun_of, schema_version,
    input_ref, output_ref, payload, is_graph, last_event, era)
VALUES (?1, 0, 1, ?22, ?22, 0, ?3, 1, ?2, ?2, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
    ?17, ?18, ?19, ?20, ?21, ?23, ?24, ?25)
