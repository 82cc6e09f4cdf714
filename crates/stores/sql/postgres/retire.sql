-- The next jobs, the oldest first. Those that have ended long ago, with nothing left to deliver, are deleted
-- with all that belongs to them; their dedup keys stay. The current run of a request stays, because its status is
-- read off it, and so does the job of the newest event, as on SQLite, where positions are told by it. A run that
-- is not current will never be it again. What another engine is deleting is passed over.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), page AS MATERIALIZED (
    SELECT alive.now, alive.now - $3::bigint AS until, j.*
    FROM alive, LATERAL (SELECT job_id, created_at, completed_at FROM sprag.job
        WHERE job_id > $4::uuid ORDER BY job_id LIMIT $5::bigint) AS j
), doomed AS MATERIALIZED (
    SELECT p.now, j.job_id, j.tenant_id, j.dedup_key, j.idempotency_hash, j.state
    FROM page p JOIN sprag.job j ON j.job_id = p.job_id
    WHERE p.completed_at <= p.until AND (substr(j.dedup_key, 1, 2) <> 'r:'
            OR (SELECT r.run_no FROM sprag.request r WHERE r.job_id = j.job_id LIMIT 1) IS NULL)
        AND j.job_id <> (SELECT e.job_id FROM sprag.event e ORDER BY e.xid DESC, e.pos DESC LIMIT 1)
        AND NOT EXISTS (SELECT 1 FROM sprag.completion c
            WHERE c.job_id = j.job_id AND c.due_at IS NOT NULL)
    FOR UPDATE OF j SKIP LOCKED
), kept AS (
    INSERT INTO sprag.retired (tenant_id, dedup_key, idempotency_hash, job_id, state, retired_at)
    SELECT tenant_id, dedup_key, idempotency_hash, job_id, state, now FROM doomed
), completions AS (
    DELETE FROM sprag.completion c USING doomed d WHERE c.job_id = d.job_id
), stales AS (
    DELETE FROM sprag.stale s USING doomed d WHERE s.job_id = d.job_id
), signals AS (
    DELETE FROM sprag.signal g USING doomed d WHERE g.job_id = d.job_id
), journals AS (
    DELETE FROM sprag.batch_journal g USING doomed d WHERE g.job_id = d.job_id
), batches AS (
    DELETE FROM sprag.batch b USING doomed d WHERE b.job_id = d.job_id
), events AS (
    DELETE FROM sprag.event e USING doomed d WHERE e.job_id = d.job_id
), attempts AS (
    DELETE FROM sprag.attempt a USING doomed d WHERE a.job_id = d.job_id
), jobs AS (
    DELETE FROM sprag.job j USING doomed d WHERE j.job_id = d.job_id
)
SELECT (SELECT count(*) FROM doomed), (SELECT count(*) FROM page),
    EXISTS (SELECT 1 FROM page WHERE created_at > until),
    (SELECT job_id FROM page ORDER BY job_id DESC LIMIT 1)
FROM alive
