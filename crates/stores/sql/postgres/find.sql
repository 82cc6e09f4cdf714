-- At each place the newest attempt that has a lease, or else the one that waits for it.
SELECT {held}, i.n
FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::integer[])
        WITH ORDINALITY AS i (job_id, step_id, lowest, highest, branch, turn, n)
    JOIN sprag.job j ON j.job_id = i.job_id
    CROSS JOIN LATERAL (SELECT * FROM sprag.attempt
        WHERE job_id = i.job_id AND step_index BETWEEN i.lowest AND i.highest AND branch = i.branch
            AND turn = i.turn AND step_id = i.step_id
        ORDER BY lease_id IS NULL, attempt_no DESC LIMIT 1) AS a
