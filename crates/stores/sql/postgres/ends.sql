-- The newest attempt at each place, in its turn or the last one before that.
SELECT i.n, a.state, a.output, a.error_code, a.error_message
FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::integer[]) WITH ORDINALITY
        AS i (job_id, step_index, branch, turn, n),
    LATERAL (SELECT state, output, error_code, error_message FROM sprag.attempt
        WHERE job_id = i.job_id AND step_index = i.step_index AND branch = i.branch AND turn <= i.turn
        ORDER BY turn DESC, attempt_no DESC LIMIT 1) AS a
