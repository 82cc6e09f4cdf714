-- The events of all jobs after a place. A transaction that is still open may yet write events, all of them
-- under its own number; so what is shown ends below the lowest number that is still open.
SELECT e.xid::text, e.pos, e.job_id, j.tenant_id, e.n::bigint, e.at, e.step_index, e.attempt_no, e.changes,
    e.note, e.branch, e.turn
FROM sprag.event e LEFT JOIN sprag.job j ON j.job_id = e.job_id
WHERE (e.xid, e.pos) > ($1::text::xid8, $2::bigint) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.xid, e.pos LIMIT $3::bigint
