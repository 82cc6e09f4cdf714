-- Whoever has a gate is admitted there before it begins.
SELECT a.job_id, 'step ' || a.step_index || ', branch ' || a.branch || ', turn ' || a.turn || ', attempt '
    || a.attempt_no || ', gate ' || a.gate AS detail
FROM attempt a
WHERE a.gate IS NOT NULL AND a.admitted_at IS NULL AND a.completed_at IS NULL
    AND (a.ledger >= 1000000000000 OR a.owner IS NOT NULL)
