-- At a gate no more are admitted than the limit of one of them allows.
SELECT NULL AS job_id, 'gate ' || a.gate || ', admitted ' || count(*) || ', limit ' || max(a.gate_max) AS detail
FROM attempt a WHERE a.admitted_at IS NOT NULL
GROUP BY a.gate HAVING count(a.gate_max) = count(*) AND count(*) > max(a.gate_max)
