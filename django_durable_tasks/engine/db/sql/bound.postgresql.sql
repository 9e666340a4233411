-- Limits of this transaction alone, as SET LOCAL gives them: behind a pooler a SET would stay for others.
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true)
