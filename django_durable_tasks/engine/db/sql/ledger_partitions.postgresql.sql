-- The partitions of the ledger with their ranges of fire times; no row if it is not partitioned. The default partition
-- has no range, and the first one no beginning. The text of a bound has the time zone of the session.
SELECT child.relname,
       (regexp_match(bound.text, 'FROM \(''([^'']+)''\)'))[1]::timestamptz,
       (regexp_match(bound.text, 'TO \(''([^'']+)''\)'))[1]::timestamptz
  FROM pg_inherits
  JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
 CROSS JOIN LATERAL pg_get_expr(child.relpartbound, child.oid) AS bound (text)
 WHERE pg_inherits.inhparent = to_regclass('durable_tasks_occurrence')
 ORDER BY 3 NULLS LAST
