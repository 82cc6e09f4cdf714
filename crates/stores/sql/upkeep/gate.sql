-- How a gate stands.
SELECT (SELECT count(*) FROM attempt a WHERE a.gate = $1 AND a.admitted_at IS NOT NULL) AS admitted,
    (SELECT count(*) FROM attempt a WHERE a.gate = $1 AND a.ready_at IS NOT NULL AND a.gate IS NOT NULL
        AND a.admitted_at IS NULL) AS waiting,
    (SELECT g.arrival_us FROM gate g WHERE g.gate = $1) AS arrival_us
