-- The columns of the connection's database whose collation is another one than `exact`.
SELECT table_name, column_name, collation_name FROM information_schema.columns
 WHERE table_schema = DATABASE() AND collation_name <> %(exact)s
 ORDER BY table_name, ordinal_position
