"""The state machine as data, and the only writers of Task.status: one function per transition of
``states.machine``.

Each transition is one guarded UPDATE of many rows. The UPDATE requires the status that the
transition starts from, and the epoch that the caller read. If it matches no row, nothing has
changed, and the row count shows this. Transitions raise ``epoch``, except heartbeats and repeated
messages. Rows are locked in primary-key order, unless locked rows are skipped. Each transition
that changes rows sends ``tasks_transitioned``. Frequent transitions also have an SQL form in
``store/sql/``, which passes the same tests as the ORM form.
"""
