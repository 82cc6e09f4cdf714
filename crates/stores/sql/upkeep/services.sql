-- Services that are paused or waited for.
SELECT s.service, max(s.paused_at) AS paused_at, CAST(sum(s.ready) AS bigint) AS ready
FROM (SELECT service, paused_at, 0 AS ready FROM service
    UNION ALL
    SELECT service, NULL, count(*) FROM attempt WHERE ready_at IS NOT NULL GROUP BY service) AS s
GROUP BY s.service ORDER BY s.service
