-- The request as a decision under its lock has left it, with one event per change.
WITH clock AS MATERIALIZED (
    SELECT sprag.now_ms($7::bigint) AS now
), amended AS (
    UPDATE sprag.request r SET status = $2, version = $3, run_no = $4, job_id = coalesce($5, r.job_id),
        events = r.events + cardinality($6::text[]), updated_at = clock.now,
        envelope = coalesce($8, r.envelope), draft = coalesce($9, r.draft),
        protocol_id = CASE WHEN $9 IS NULL THEN r.protocol_id ELSE $10 END
    FROM clock WHERE r.request_id = $1
    RETURNING r.request_id, r.events, clock.now
)
INSERT INTO sprag.request_event (request_id, n, at, changes)
SELECT a.request_id, a.events - cardinality($6::text[]) + i.n, a.now, i.changes
FROM amended a, unnest($6::text[]) WITH ORDINALITY AS i (changes, n)
