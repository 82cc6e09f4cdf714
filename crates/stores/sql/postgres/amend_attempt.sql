-- The attempt as a decision under its lock has left it. What waits, for a timer or in the queue, has no owner.
-- One that is made ready is to be ended and not to be worked on: that is the engines' own business, whoever serves
-- its service; one that an engine has already taken out of the queue stays with it.
-- The message that ends it says why it failed; until then it is what was last in the way of its directive.
-- What is to be taken up for its end leaves the line at its gate: it will not run.
UPDATE sprag.attempt SET state = $6::smallint, ledger = $7::bigint, guid = $8::bigint,
    ending = $9::smallint, content = $10::bytea, outbox = $11::smallint,
    publish_attempts = $12::integer, lease_expires_at = $13::bigint,
    acked_at = CASE WHEN $14::boolean THEN coalesce(acked_at, $22::bigint) END,
    sent_at = CASE WHEN $15::boolean THEN coalesce(sent_at, $22::bigint) END,
    timer_at = CASE $16::text WHEN 'keep' THEN timer_at WHEN 'at' THEN $17::bigint END,
    ready_at = CASE $16::text WHEN 'keep' THEN ready_at
        WHEN 'ready' THEN $22::bigint - priority * $18::bigint END,
    countdown = CASE WHEN $16::text = 'ready' THEN 0 ELSE countdown END,
    gate = CASE WHEN $16::text = 'ready' AND admitted_at IS NULL THEN NULL ELSE gate END,
    owner = CASE WHEN $16::text NOT IN ('at', 'ready') THEN coalesce($23::bigint, owner) END, lease_id = $24::bigint,
    service = CASE WHEN $16::text = 'ready' THEN $25::text ELSE service END,
    output = coalesce($19::text, output),
    error_code = CASE WHEN $23 IS NULL THEN coalesce($20::text, error_code) ELSE $20 END,
    error_message = CASE WHEN $23 IS NULL THEN coalesce($21::text, error_message) ELSE $21 END,
    version = version + 1, updated_at = $22::bigint
WHERE job_id = $1::uuid AND step_index = $2::integer AND branch = $3::bigint AND turn = $4::integer
    AND attempt_no = $5::integer AND ($16::text <> 'ready' OR owner IS NULL)
