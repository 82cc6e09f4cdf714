-- Every key belongs to an era that there is: only those are looked through.
SELECT job_id, 'era ' || era AS detail
FROM (SELECT job_id, era FROM job UNION ALL SELECT job_id, era FROM retired)
WHERE era NOT IN (SELECT era FROM era)
