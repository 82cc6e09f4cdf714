-- How far a request came by itself, its runs, and all that its events tell, to be folded and compared.
SELECT r.request_id AS request_id, r.status || ' ' || r.run_no AS found,
    (SELECT string_agg(e.changes, ' ' ORDER BY e.n) FROM request_event e
    WHERE e.request_id = r.request_id) AS told
FROM request r
