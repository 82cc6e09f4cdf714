-- Rows of a journal from the one that holds a seq on: the last that does not begin behind it, by the key.
SELECT first_seq, seqs, outcomes, notes, outputs FROM batch_journal
WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4
    AND first_seq >= (SELECT coalesce(max(first_seq), 0) FROM batch_journal
        WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND first_seq <= ?5)
    AND first_seq + seqs > ?5
ORDER BY first_seq LIMIT ?6
