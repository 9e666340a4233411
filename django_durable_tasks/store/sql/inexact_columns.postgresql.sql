-- The columns whose type or collation regards different texts as equal. Every deterministic collation compares byte by
-- byte.
SELECT tables.relname, columns.attname, coalesce(collations.collname, types.typname)
  FROM pg_attribute AS columns
  JOIN pg_class AS tables ON tables.oid = columns.attrelid
  JOIN pg_type AS types ON types.oid = columns.atttypid
  LEFT JOIN pg_collation AS collations ON collations.oid = columns.attcollation AND NOT collations.collisdeterministic
 WHERE tables.relkind IN ('r', 'p') AND pg_table_is_visible(tables.oid) AND NOT columns.attisdropped
   AND (collations.oid IS NOT NULL OR types.typname = 'citext')
 ORDER BY tables.relname, columns.attnum
