-- What waits: for a time that has come, for a publisher, for another attempt, and for so long that nobody seems to do
-- it. Times are now, the latest time since when it is too long, and the weight of one step of priority. What is ready stands
-- in the queue or in line at a gate: each has an index of its own, and nothing that is over is looked at.
SELECT (SELECT count(*) FROM attempt WHERE timer_at <= CAST($1 AS bigint)) AS timers_due,
    (SELECT count(*) FROM attempt
    WHERE timer_at IS NOT NULL AND outbox = 0 AND state = 1 AND ending IS NULL) AS unpublished,
    (SELECT count(*) FROM attempt
    WHERE timer_at IS NOT NULL AND attempt_no > 1 AND lease_id IS NULL) AS retries_waiting,
    (SELECT count(DISTINCT late.job_id) FROM (
        SELECT a.job_id FROM attempt a
        WHERE a.ready_at IS NOT NULL AND (a.gate IS NULL OR a.admitted_at IS NOT NULL)
            AND a.ready_at + a.priority * CAST($3 AS bigint) <= CAST($2 AS bigint)
            AND NOT EXISTS (SELECT 1 FROM service s WHERE s.service = a.service)
        UNION ALL
        SELECT a.job_id FROM attempt a
        WHERE a.ready_at IS NOT NULL AND a.gate IS NOT NULL AND a.admitted_at IS NULL
            AND a.ready_at + a.priority * CAST($3 AS bigint) <= CAST($2 AS bigint)
            AND NOT EXISTS (SELECT 1 FROM service s WHERE s.service = a.service)) AS late) AS stuck_jobs
