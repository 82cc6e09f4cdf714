-- A schedule moves on in the commit that lays its tick into the inbox. Those of one that had its name before are older
-- than itself. Times have thirteen digits, and so the order of their texts; who has a colon in its name is left out.
SELECT j.job_id, 'schedule ' || s.schedule_id || ', tick ' || i.dedup_key || ', last ' || coalesce(s.last_tick, 0)
    AS detail
FROM inbox i JOIN job j ON j.job_id = i.job_id
    JOIN schedule s ON s.tenant_id = j.tenant_id AND s.created_at < i.submitted_at
        AND substr(i.dedup_key, 1, length(s.schedule_id) + 3) = 's:' || s.schedule_id || ':'
        AND length(i.dedup_key) = length(s.schedule_id) + 16
WHERE substr(i.dedup_key, length(s.schedule_id) + 4) > CAST(coalesce(s.last_tick, 0) AS text)
