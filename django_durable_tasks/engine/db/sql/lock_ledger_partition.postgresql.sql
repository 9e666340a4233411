-- Blocks writes to this partition only, while its entries are checked.
SET LOCAL lock_timeout = '500ms';
LOCK TABLE {name} IN SHARE MODE;
