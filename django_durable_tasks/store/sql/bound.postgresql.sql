-- Timeouts for this transaction only, like SET LOCAL. Behind a pooler, SET would also affect other clients.
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true)
