-- Whoever is over holds no slot at its gate.
SELECT a.job_id, 'step ' || a.step_index || ', branch ' || a.branch || ', turn ' || a.turn || ', attempt '
    || a.attempt_no || ', gate ' || a.gate AS detail
FROM attempt a
WHERE a.admitted_at IS NOT NULL AND (a.completed_at IS NOT NULL OR a.gate IS NULL)
