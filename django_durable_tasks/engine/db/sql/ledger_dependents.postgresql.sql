-- What refers to the ledger and would refer to its first partition after the conversion: views, triggers, policies,
-- foreign keys.
SELECT DISTINCT pg_describe_object(classid, objid, objsubid)
  FROM pg_depend
 WHERE refclassid = 'pg_class'::regclass AND refobjid = to_regclass('durable_tasks_occurrence')
   AND (classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass, 'pg_policy'::regclass, 'pg_publication_rel'::regclass)
        OR classid = 'pg_constraint'::regclass
           AND objid IN (SELECT oid FROM pg_constraint
                          WHERE contype = 'f' AND confrelid = to_regclass('durable_tasks_occurrence')))
 ORDER BY 1
