-- The heads of the lines at gates, as many of each as there may be room for by the limit of the first; and how
-- the gates stand. Whoever asks holds the gates' locks. Who is admitted is counted only as far as that limit:
-- beyond it nobody is let in. If the first has none it is counted as far as the largest behind it.
SELECT a.job_id, a.step_index, a.branch, a.turn, a.attempt_no, a.version, a.gate_max, a.gate_gap, g.gate,
    g.admitted, g.arrival_us
FROM (SELECT u.gate, h.gate_max,
        (SELECT count(*) FROM (SELECT 1 FROM sprag.attempt b
            WHERE b.gate = u.gate AND b.admitted_at IS NOT NULL
            LIMIT coalesce(h.gate_max, (SELECT max(m.gate_max) FROM (SELECT gate_max FROM sprag.attempt
                WHERE gate = u.gate AND ready_at IS NOT NULL AND gate IS NOT NULL AND admitted_at IS NULL
                ORDER BY ready_at, job_id LIMIT $2::bigint) AS m), 0)) AS c) AS admitted,
        coalesce((SELECT r.arrival_us FROM sprag.gate r WHERE r.gate = u.gate), 0) AS arrival_us
    FROM unnest($1::text[]) AS u (gate),
        LATERAL (SELECT gate_max FROM sprag.attempt
            WHERE gate = u.gate AND ready_at IS NOT NULL AND gate IS NOT NULL AND admitted_at IS NULL
            ORDER BY ready_at, job_id LIMIT 1) AS h) AS g,
    LATERAL (SELECT job_id, step_index, branch, turn, attempt_no, version, gate_max, gate_gap, ready_at
        FROM sprag.attempt
        WHERE gate = g.gate AND ready_at IS NOT NULL AND gate IS NOT NULL AND admitted_at IS NULL
        ORDER BY ready_at, job_id
        LIMIT CASE WHEN g.gate_max - g.admitted < $2::bigint THEN g.gate_max - g.admitted ELSE $2 END) AS a
ORDER BY g.gate, a.ready_at, a.job_id, a.step_index, a.branch, a.turn
