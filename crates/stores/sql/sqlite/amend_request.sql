-- The request as a decision under its lock has left it.
UPDATE request SET status = ?2, version = ?3, run_no = ?4, job_id = coalesce(?5, job_id),
    events = events + ?6, updated_at = ?7, envelope = coalesce(?8, envelope), draft = coalesce(?9, draft),
    protocol_id = iif(?9 IS NULL, protocol_id, ?10)
WHERE request_id = ?1
