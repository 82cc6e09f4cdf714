-- Services that are paused, waited for or served. What stands at a gate waits for the gate.
SELECT s.service, max(s.paused_at) AS paused_at, CAST(sum(s.ready) AS bigint) AS ready, max(s.seen_at) AS seen_at
FROM (SELECT service, paused_at, 0 AS ready, NULL AS seen_at FROM service
    UNION ALL
    SELECT service, NULL, 0, seen_at FROM served
    UNION ALL
    SELECT service, NULL, count(*), NULL FROM attempt
    WHERE ready_at IS NOT NULL AND (gate IS NULL OR admitted_at IS NOT NULL) GROUP BY service) AS s
GROUP BY s.service ORDER BY s.service
