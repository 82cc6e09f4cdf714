-- The keys of an era, of jobs and of what is left of those that were deleted, with their jobs. What its filter says of
-- each is asked of the filter.
SELECT tenant_id, dedup_key, job_id FROM job WHERE era = ?1
UNION ALL
SELECT tenant_id, dedup_key, job_id FROM retired WHERE era = ?1
