-- Each row of a journal begins where the one before it ends, the first at 0, and belongs to a batch.
SELECT g.job_id, 'step ' || g.step_index || ', branch ' || g.branch || ', turn ' || g.turn || ', row of seq '
    || g.first_seq || ', expected ' || g.expected AS detail
FROM (SELECT j.*, coalesce(lag(j.first_seq + j.seqs) OVER (PARTITION BY j.job_id, j.step_index,
        j.branch, j.turn ORDER BY j.first_seq), 0) AS expected FROM batch_journal j) AS g
    LEFT JOIN batch b ON b.job_id = g.job_id AND b.step_index = g.step_index AND b.branch = g.branch
        AND b.turn = g.turn
WHERE g.first_seq <> g.expected OR b.job_id IS NULL
