-- Services that are paused, waited for or served, and since when the step waits that is claimed next. What stands at
-- a gate waits for the gate. The parameter is the weight of one step of priority.
SELECT s.service, max(s.paused_at) AS paused_at, CAST(sum(s.ready) AS bigint) AS ready, max(s.seen_at) AS seen_at,
    (SELECT a.ready_at + a.priority * CAST($1 AS bigint) FROM attempt a
    WHERE a.service = s.service AND a.ready_at IS NOT NULL AND (a.gate IS NULL OR a.admitted_at IS NOT NULL)
    ORDER BY a.ready_at LIMIT 1) AS ready_since
FROM (SELECT service, paused_at, 0 AS ready, NULL AS seen_at FROM service
    UNION ALL
    SELECT service, NULL, 0, seen_at FROM served
    UNION ALL
    SELECT service, NULL, count(*), NULL FROM attempt
    WHERE ready_at IS NOT NULL AND (gate IS NULL OR admitted_at IS NOT NULL) GROUP BY service) AS s
GROUP BY s.service ORDER BY s.service
