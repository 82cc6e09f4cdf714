-- A batch is as far as its journal is long.
SELECT b.job_id, 'step ' || b.step_index || ', branch ' || b.branch || ', turn ' || b.turn || ', cursor '
    || b.cursor || ', journal ' || coalesce(sum(g.seqs), 0) AS detail
FROM batch b LEFT JOIN batch_journal g ON g.job_id = b.job_id AND g.step_index = b.step_index
    AND g.branch = b.branch AND g.turn = b.turn
GROUP BY b.job_id, b.step_index, b.branch, b.turn, b.cursor
HAVING b.cursor <> coalesce(sum(g.seqs), 0)
