-- Executed outside a transaction: a NOTIFY inside one takes a lock on the whole server before its COMMIT is flushed.
SELECT pg_notify(%(channel)s, %(payload)s)
