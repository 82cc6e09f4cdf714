-- The head of the line at a gate.
SELECT job_id, step_index, branch, turn, attempt_no, gate_max, gate_gap FROM attempt
WHERE gate = ?1 AND ready_at IS NOT NULL AND gate IS NOT NULL AND admitted_at IS NULL
ORDER BY ready_at, job_id LIMIT ?2
