-- DETACH locks the whole ledger for the rest of the transaction, so it comes last.
ALTER TABLE durable_tasks_occurrence DETACH PARTITION {name};
DROP TABLE {name};
