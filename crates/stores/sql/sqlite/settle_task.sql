-- How a delivery went, if it is still this engine's.
UPDATE completion SET due_at = ?5, delivered_at = iif(?5 IS NULL, ?7, NULL), owner = NULL, error_message = ?6
WHERE job_id = ?1 AND task = ?2 AND deliveries = ?3 AND owner = ?4 AND delivered_at IS NULL
