-- A wait that is parked has no signal, and there is none of its name that nobody has.
SELECT a.job_id, 'step ' || a.step_index || ' waits for ' || a.waits_for || ', signal ' || s.n || ' is there'
    AS detail
FROM attempt a JOIN signal s ON s.job_id = a.job_id AND s.name = a.waits_for
    AND (s.step_index IS NULL OR s.step_index = a.step_index AND s.branch = a.branch AND s.turn = a.turn)
WHERE a.state IN (0, 5) AND a.ending IS NULL AND a.owner IS NULL AND a.ready_at IS NULL
    AND a.waits_for IS NOT NULL
