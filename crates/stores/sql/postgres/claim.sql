-- Due activations, the most urgent first, leave the queue and enter Leg1. What another engine is
-- claiming right now is passed over. `pick` is 0 for all, 1 for those that were delivered less often than
-- `$5`, 2 for the others. With a tenant nothing of another one is claimed. Nothing of a paused service is
-- claimed. At the ceiling of entries a row is claimed without one. The job is found by a column of its own (`of_job`),
-- or a planner that saw the tables empty would go from the job to all its attempts, once for each of them.
WITH alive AS MATERIALIZED (
    SELECT sprag.now_ms($2::bigint) AS now FROM sprag.engine
    WHERE engine_no = $1::bigint AND dead = 0 FOR KEY SHARE
), picked AS MATERIALIZED (
    SELECT alive.now, w.wish, a.*, a.job_id AS of_job
    FROM alive, unnest($3::text[], $4::bigint[], $6::smallint[], $7::text[]) WITH ORDINALITY
            AS w (service, most, pick, tenant_id, wish),
        LATERAL (SELECT job_id, step_index, branch, turn, attempt_no, ready_at,
                ledger / 1000000000000 >= 999 AS exhausted FROM sprag.attempt
            WHERE service = w.service AND ready_at IS NOT NULL
                AND (gate IS NULL OR admitted_at IS NOT NULL) AND (w.pick = 0
                OR (losses + ledger / 1000000000000 >= $5::bigint) = (w.pick = 2))
                AND (w.tenant_id IS NULL OR (SELECT o.tenant_id FROM sprag.job o
                    WHERE o.job_id = attempt.job_id) = w.tenant_id)
            ORDER BY ready_at, job_id
            LIMIT w.most FOR UPDATE SKIP LOCKED) AS a
    WHERE (SELECT 1 FROM sprag.service s WHERE s.service = w.service) IS NULL
)
UPDATE sprag.attempt a SET ready_at = NULL, owner = $1, version = a.version + 1, updated_at = p.now,
    ledger = a.ledger + CASE WHEN a.ledger / 1000000000000 < 999 THEN 1000000000000 ELSE 0 END
FROM picked p JOIN sprag.job j ON j.job_id = p.of_job
WHERE a.job_id = p.job_id AND a.step_index = p.step_index AND a.branch = p.branch
    AND a.turn = p.turn AND a.attempt_no = p.attempt_no AND p.wish > 0
RETURNING {held}, p.wish, p.ready_at, p.exhausted
