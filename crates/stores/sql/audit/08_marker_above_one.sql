-- Markers are set once.
SELECT job_id, 'step ' || step_index || ', branch ' || branch || ', turn ' || turn || ', attempt ' || attempt_no
    || ', ledger ' || ledger || ', guid ' || coalesce(guid, 0) AS detail FROM attempt
WHERE ledger / 100000000000 % 10 > 1 OR ledger / 10000000000 % 10 > 1
    OR ledger / 1000000000 % 10 > 1 OR ledger / 100000000 % 10 > 1
    OR guid / 100000000000 > 1 OR guid / 10000000000 % 10 > 1
    OR guid / 1000000000 % 10 > 1 OR guid / 100000000 % 10 > 1
