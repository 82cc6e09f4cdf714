-- Eras of which no key is left, sixty-four neighbours at a time, as their filters are kept; never the newest ones.
DELETE FROM era WHERE era / 64 IN
    (SELECT side FROM (SELECT DISTINCT era / 64 AS side FROM era)
     WHERE side < (SELECT max(era) / 64 FROM era)
        AND NOT EXISTS (SELECT 1 FROM job WHERE era BETWEEN side * 64 AND side * 64 + 63)
        AND NOT EXISTS (SELECT 1 FROM retired WHERE era BETWEEN side * 64 AND side * 64 + 63))
