-- Gates at which somebody stands in line, by name, without looking at everybody in it.
WITH RECURSIVE line AS (
    (SELECT gate FROM sprag.attempt
        WHERE ready_at IS NOT NULL AND gate IS NOT NULL AND admitted_at IS NULL AND gate > $1::text
        ORDER BY gate LIMIT 1)
    UNION ALL
    SELECT (SELECT a.gate FROM sprag.attempt a
        WHERE a.ready_at IS NOT NULL AND a.gate IS NOT NULL AND a.admitted_at IS NULL AND a.gate > l.gate
        ORDER BY a.gate LIMIT 1)
    FROM line l WHERE l.gate IS NOT NULL
)
SELECT gate FROM line WHERE gate IS NOT NULL LIMIT $2::bigint
