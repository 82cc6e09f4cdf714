-- What became of envelopes of the inbox.
UPDATE sprag.inbox i SET taken_at = $1::bigint, job_id = u.job_id, error_code = u.error_code,
    error_message = u.error_message
FROM unnest($2::bigint[], $3::uuid[], $4::text[], $5::text[])
    AS u (inbox_id, job_id, error_code, error_message)
WHERE i.inbox_id = u.inbox_id
