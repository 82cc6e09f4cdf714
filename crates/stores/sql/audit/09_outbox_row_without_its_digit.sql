-- A directive is written with the digit of Leg1, and the digit with a directive or a cancel (10) or a skip (11).
SELECT job_id, 'step ' || step_index || ', branch ' || branch || ', turn ' || turn || ', attempt ' || attempt_no
    || ', ledger ' || ledger AS detail FROM attempt
WHERE (outbox IS NOT NULL AND ledger / 100000000000 % 10 = 0)
    OR (outbox IS NULL AND ledger / 100000000000 % 10 = 1 AND coalesce(ending, 0) NOT IN (10, 11))
