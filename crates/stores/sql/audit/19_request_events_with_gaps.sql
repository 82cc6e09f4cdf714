-- The events of a request are numbered from 1 without gaps.
SELECT r.request_id AS request_id, 'has ' || count(e.n) || ' events to ' || coalesce(max(e.n), 0)
    || ', the row says ' || r.events AS detail
FROM request r LEFT JOIN request_event e ON e.request_id = r.request_id
GROUP BY r.request_id, r.events
HAVING count(e.n) <> r.events OR coalesce(max(e.n), 0) <> r.events
