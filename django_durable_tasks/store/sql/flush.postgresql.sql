-- Writes a record of a few bytes, so that this COMMIT is flushed, and with it all that was committed before.
SELECT pg_logical_emit_message(true, 'durable_tasks', '')
