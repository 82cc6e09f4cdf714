-- The current run of a request is a job of its own tenant and type, made for that very run; the status is the
-- job's from then on, and the request's own stays at `confirmed`.
SELECT r.request_id AS request_id, 'run ' || r.run_no || ' of the request has job '
    || coalesce(j.dedup_key, 'none') AS detail
FROM request r LEFT JOIN job j ON j.job_id = r.job_id
WHERE r.run_no > 0 AND (r.status <> 2 OR j.dedup_key IS NULL OR j.dedup_key NOT LIKE 'r:%:' || r.run_no
    OR j.tenant_id <> r.tenant_id OR j.request_type <> r.request_type
    OR j.protocol_id <> r.protocol_id)
