-- The keys of an era, of jobs that are there and of those that retention has deleted.
SELECT tenant_id, dedup_key FROM job WHERE era = ?1
UNION ALL
SELECT tenant_id, dedup_key FROM retired WHERE era = ?1
