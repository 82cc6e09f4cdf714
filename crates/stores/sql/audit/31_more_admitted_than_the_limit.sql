-- At a gate no more are admitted with a limit of so many, or fewer, than so many: the last of them found room.
SELECT NULL AS job_id, 'gate ' || a.gate || ', admitted ' || count(*) || ', limit ' || l.gate_max AS detail
FROM (SELECT DISTINCT gate, gate_max FROM attempt WHERE admitted_at IS NOT NULL AND gate_max IS NOT NULL) AS l
    JOIN attempt a ON a.gate = l.gate AND a.admitted_at IS NOT NULL AND a.gate_max <= l.gate_max
GROUP BY a.gate, l.gate_max HAVING count(*) > l.gate_max
