-- Those that may start leave the line: into the queue, or to wait for their own time if a rate has given them
-- one. Whoever is not there any more is passed over. The gates' next times are kept with it, and a few rows go
-- whose time has passed.
WITH admitted AS (
    UPDATE sprag.attempt a SET admitted_at = i.start_at, version = a.version + 1, updated_at = $1::bigint,
        ready_at = CASE WHEN i.start_at > $1 THEN NULL ELSE a.ready_at END,
        timer_at = CASE WHEN i.start_at > $1 THEN i.start_at END
    FROM unnest($2::uuid[], $3::integer[], $4::bigint[], $5::integer[], $6::integer[], $7::bigint[],
        $8::bigint[]) AS i (job_id, step_index, branch, turn, attempt_no, version, start_at)
    WHERE i.step_index >= 0 AND i.attempt_no > 0 AND i.turn >= 0 AND a.job_id = i.job_id
        AND a.step_index = i.step_index AND a.branch = i.branch AND a.turn = i.turn
        AND a.attempt_no = i.attempt_no AND a.version = i.version
        AND a.ready_at IS NOT NULL AND a.gate IS NOT NULL AND a.admitted_at IS NULL
    RETURNING 1
), kept AS (
    INSERT INTO sprag.gate (gate, arrival_us) SELECT * FROM unnest($9::text[], $10::bigint[])
    ON CONFLICT (gate) DO UPDATE SET arrival_us = EXCLUDED.arrival_us
), swept AS (
    DELETE FROM sprag.gate g USING (SELECT gate FROM sprag.gate
        WHERE arrival_us < $1 * 1000 AND NOT gate = ANY ($9::text[])
        ORDER BY arrival_us LIMIT 16 FOR UPDATE SKIP LOCKED) AS o
    WHERE g.gate = o.gate AND cardinality($9::text[]) > 0
)
SELECT count(*) FROM admitted
