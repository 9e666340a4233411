-- New tasks, with the columns of rows_of() in states/inserts.py. COPY evaluates no expression: every time is given, so that
-- all tasks of one COPY have the same.
COPY durable_tasks_task ({copied}) FROM STDIN (FORMAT binary)
