-- Running attempts show a sign of life. Not a transition: the rows keep their versions.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
)
UPDATE sprag.attempt a SET lease_expires_at = i.now + i.lease_ms,
    progress = coalesce(i.progress, a.progress)
FROM (SELECT alive.now, u.* FROM alive, unnest($3::uuid[], $4::integer[], $5::bigint[], $6::integer[],
        $7::integer[], $8::bigint[], $9::bigint[], $10::text[])
        AS u (job_id, step_index, branch, turn, attempt_no, lease_id, lease_ms, progress)
    WHERE u.step_index >= 0 AND u.attempt_no > 0 AND u.turn >= 0) AS i
WHERE a.job_id = i.job_id AND a.step_index = i.step_index AND a.branch = i.branch AND a.turn = i.turn
    AND a.attempt_no = i.attempt_no AND a.owner = $1 AND a.lease_id = i.lease_id AND a.ending IS NULL
RETURNING 1
