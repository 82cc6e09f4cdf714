-- The last callback of its kind that changed nothing at each step, and how many there were.
INSERT INTO sprag.stale (job_id, step_index, branch, turn, attempt_no, callback, code, lease_id, times, at)
SELECT i.job_id, i.step_index, i.branch, i.turn, max(i.attempt_no), i.callback, i.code, max(i.lease_id),
    count(*), min(alive.now)
FROM (SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
        WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE) AS alive,
    unnest($3::uuid[], $4::integer[], $5::bigint[], $6::integer[], $7::integer[], $8::text[], $9::text[],
        $10::bigint[]) AS i (job_id, step_index, branch, turn, attempt_no, callback, code, lease_id)
GROUP BY i.job_id, i.step_index, i.branch, i.turn, i.callback, i.code
ORDER BY i.job_id, i.step_index, i.branch, i.turn, i.callback, i.code
ON CONFLICT (job_id, step_index, branch, turn, callback, code) DO UPDATE SET
    attempt_no = excluded.attempt_no, lease_id = excluded.lease_id,
    times = sprag.stale.times + excluded.times, at = excluded.at
RETURNING 1
