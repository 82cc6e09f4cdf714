-- What the waits of a slice may have: signals that nobody has, and those that have gone to them.
SELECT s.job_id, s.n, s.name, s.step_index, s.branch, s.turn FROM sprag.signal s
WHERE s.job_id = ANY ($1::uuid[]) AND (s.step_index IS NULL AND s.name = ANY ($2::text[])
    OR (s.job_id, s.step_index, s.branch, s.turn) IN (SELECT * FROM unnest($1::uuid[], $3::integer[],
        $4::bigint[], $5::integer[])))
ORDER BY s.job_id, s.n
