-- A row of the inbox that says by what key its job is known has become the job with that key.
SELECT j.job_id, 'inbox row ' || i.inbox_id || ' of ' || i.dedup_key || ', job of ' || j.dedup_key AS detail
FROM inbox i JOIN job j ON j.job_id = i.job_id WHERE i.dedup_key <> j.dedup_key
