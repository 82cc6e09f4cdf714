-- Envelopes that no engine has taken, the oldest first, $1 of them at the most. One of more than $2 bytes stays where it is,
-- and none follows once those before it come to $3 bytes. How long a text is stands beside it: it is not read for that.
SELECT inbox_id, CASE WHEN bytes <= $2::bigint THEN envelope END AS envelope, dedup_key
FROM (SELECT inbox_id, envelope, dedup_key, bytes,
        sum(CASE WHEN bytes <= $2::bigint THEN bytes ELSE 0 END) OVER (ORDER BY inbox_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT inbox_id, envelope, dedup_key, octet_length(envelope) AS bytes FROM sprag.inbox
        WHERE taken_at IS NULL ORDER BY inbox_id LIMIT $1) AS oldest) AS counted
WHERE coalesce(before, 0) < $3 ORDER BY inbox_id
