-- Outside any transaction: a NOTIFY inside one would hold a lock of the whole server from before its COMMIT is flushed.
SELECT pg_notify(%(channel)s, %(payload)s)
