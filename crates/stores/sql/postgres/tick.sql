-- A tick: the schedule is moved on, and an envelope for each of its jobs lies in the inbox. Nothing happens
-- unless the schedule is awake and of the version that was looked at.
WITH moved AS (
    UPDATE sprag.schedule SET version = version + 1, last_tick = $4, next_at = $5
    WHERE tenant_id = $1 AND schedule_id = $2 AND version = $3 AND paused_at IS NULL
    RETURNING envelope
), laid AS (
    INSERT INTO sprag.inbox (envelope, submitted_at, dedup_key)
    SELECT moved.envelope, sprag.now_ms($7), made.dedup_key
    FROM moved, unnest($6::text[]) WITH ORDINALITY AS made (dedup_key, n) ORDER BY made.n
)
SELECT 1 FROM moved
