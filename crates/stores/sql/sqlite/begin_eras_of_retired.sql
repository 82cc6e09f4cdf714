-- Eras of so many keys each behind those of jobs, of keys whose jobs were deleted before they came.
UPDATE retired SET era = e.era
FROM (SELECT job_id, (SELECT coalesce(max(era), -1) + 1 FROM job)
        + (row_number() OVER (ORDER BY job_id) - 1) / ?1 AS era FROM retired) AS e
WHERE e.job_id = retired.job_id
