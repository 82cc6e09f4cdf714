-- Gates at which somebody stands in line, by name, without looking at everybody in it.
WITH RECURSIVE line (gate) AS (
    SELECT min(gate) FROM attempt
    WHERE ready_at IS NOT NULL AND gate IS NOT NULL AND admitted_at IS NULL AND gate > ?1
    UNION ALL
    SELECT (SELECT min(a.gate) FROM attempt a
        WHERE a.ready_at IS NOT NULL AND a.gate IS NOT NULL AND a.admitted_at IS NULL AND a.gate > l.gate)
    FROM line l WHERE l.gate IS NOT NULL
    LIMIT ?2 + 1
)
SELECT gate FROM line WHERE gate IS NOT NULL LIMIT ?2
