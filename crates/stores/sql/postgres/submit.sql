-- Jobs are born QUEUED with their first obligations, their attempts 1 PENDING, and their first event. A job
-- whose dedup key is known is left out, also if only the key is left of it; so are jobs of tenants with a
-- limit, unless their slots are held (`$35`). Job arrays come in the order of (tenant, dedup key), so that two slices
-- with the same jobs wait for each other in the same order. What belongs to a job but not to its row
-- (which steps, how the first begin, at which gates they wait: `$43`, so many for each as `$44` says) is found
-- by a binary search for its id in `$24`, which is sorted. What has a gate is not entered ahead.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), created AS (
    INSERT INTO sprag.job (job_id, state, version, semaphore, initial, current_step, steps, events,
        created_at, updated_at, tenant_id, request_type, protocol_id, dedup_key, idempotency_key,
        idempotency_hash, mode, doc_id, lane, routing_key, priority, correlation_id, traceparent,
        rerun_of, schema_version, input_ref, output_ref, payload, is_graph)
    SELECT i.job_id, 0, 1, i.initial, i.initial, 0, i.steps, 1, alive.now, alive.now, i.tenant_id, i.request_type,
        i.protocol_id, i.dedup_key, i.idempotency_key, i.idempotency_hash, i.mode, i.doc_id, i.lane,
        i.routing_key, i.priority, i.correlation_id, i.traceparent, i.rerun_of, i.schema_version,
        i.input_ref, i.output_ref, i.payload, i.is_graph
    FROM alive, unnest($3::uuid[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::text[], $10::bytea[], $11::smallint[], $12::text[], $13::integer[], $14::text[],
        $15::integer[], $16::text[], $17::text[], $18::uuid[], $19::text[], $20::text[], $21::text[],
        $22::text[], $36::integer[], $37::smallint[]) AS i (job_id, steps, tenant_id, request_type, protocol_id, dedup_key,
        idempotency_key, idempotency_hash, mode, doc_id, lane, routing_key, priority, correlation_id,
        traceparent, rerun_of, schema_version, input_ref, output_ref, payload, initial, is_graph)
    -- Tables that are empty are looked at once, not for every job.
    WHERE ($35::boolean OR NOT EXISTS (SELECT 1 FROM sprag.tenant)
            OR (SELECT 1 FROM sprag.tenant t WHERE t.tenant_id = i.tenant_id) IS NULL
            OR substr(i.dedup_key, 1, 2) = 'c:')
        AND (NOT EXISTS (SELECT 1 FROM sprag.retired) OR (SELECT 1 FROM sprag.retired r
            WHERE r.tenant_id = i.tenant_id AND r.dedup_key = i.dedup_key) IS NULL)
    ON CONFLICT (tenant_id, dedup_key) DO NOTHING
    RETURNING job_id, priority, created_at AS now, tenant_id, dedup_key
), numbered AS MATERIALIZED (
    SELECT c.job_id, c.priority, c.now, width_bucket(c.job_id, $24::uuid[]) AS n FROM created c
), steps AS MATERIALIZED (
    -- A step of a protocol that nobody has put has no service, which its table refuses.
    SELECT s.shape, s.step_index, s.step_id, s.step_type, s.priority, s.begins, s.countdown, s.delay_ms,
        s.gate_max, s.gate_gap,
        CASE WHEN p.protocol_id IS NOT NULL THEN s.service END AS service
    FROM unnest($28::integer[], $29::integer[], $30::text[], $31::text[], $32::text[], $33::integer[],
        $34::text[], $38::smallint[], $39::integer[], $40::bigint[], $41::integer[], $42::bigint[])
        AS s (shape, step_index, step_id, step_type, service, priority, protocol_id, begins, countdown,
            delay_ms, gate_max, gate_gap)
        LEFT JOIN sprag.protocol p ON p.protocol_id = s.protocol_id
), begun AS (
    SELECT c.job_id, c.now, c.priority + s.priority AS priority, s.step_index, s.step_id,
        s.step_type, s.service, s.begins, s.countdown, s.delay_ms, s.gate_max, s.gate_gap,
        CASE WHEN s.gate_max IS NOT NULL OR s.gate_gap IS NOT NULL
            THEN ($43::text[])[(c.n - 1) * $44::integer + s.step_index + 1] END AS gate,
        greatest(($26::bigint[])[c.n], CASE WHEN s.delay_ms > 0 THEN c.now + s.delay_ms END) AS not_before,
        ($27::boolean[])[c.n] AND s.gate_max IS NULL AND s.gate_gap IS NULL AND NOT EXISTS (SELECT 1 FROM sprag.service) AS enter
    FROM numbered c JOIN steps s ON s.shape = ($25::integer[])[c.n]
), attempts AS (
    INSERT INTO sprag.attempt (job_id, step_index, attempt_no, state, version, ledger, owner, ready_at,
        timer_at, created_at, updated_at, priority, step_id, step_type, service, countdown, delay_ms, gate,
        gate_max, gate_gap)
    SELECT job_id, step_index, 1, 0, 1,
        CASE WHEN begins = 1 AND not_before <= now AND enter THEN 1000000000000 ELSE 0 END,
        CASE WHEN begins = 1 AND not_before <= now AND enter THEN $1 END,
        CASE WHEN begins = 1 AND not_before <= now AND NOT enter
            THEN now - priority * $23::bigint END,
        CASE WHEN begins = 1 AND not_before > now THEN not_before END,
        now, now, priority, step_id, step_type, service, countdown, delay_ms, gate, gate_max, gate_gap
    FROM begun
), events AS (
    INSERT INTO sprag.event (job_id, n, at, changes)
    SELECT job_id, 1, now, 'created' FROM numbered
)
SELECT job_id FROM numbered
WHERE (SELECT sprag.expect_not_retired(array_agg(tenant_id), array_agg(dedup_key)) FROM created)
