"""The only writer of Task.status: one function per transition of ``states.machine``.

Each transition is one guarded UPDATE of many rows. The UPDATE requires the status that the
transition starts from, and the epoch that the caller read. If it matches no row, nothing has
changed, and the row count shows this. Transitions raise ``epoch``, except heartbeats and repeated
messages. Rows are locked in primary-key order, unless locked rows are skipped. Each transition
that changes rows sends ``tasks_transitioned``. Frequent transitions also have an SQL form in
``store/sql/``, which passes the same tests as the ORM form.
"""

# Callers import the transitions from here, whichever module defines them.
# mypy: implicit-reexport
# ruff: noqa: F401

from django_durable_tasks.states.batches import (
    Success,
    due_in_batch,
    owned,
    succeed_many,
    take,
    take_due,
    undo_starts,
)
from django_durable_tasks.states.claims import (
    WAS_READY,
    BlockedDependent,
    ClaimedTask,
    Unstarted,
    age,
    change_waiting_limit,
    claim,
    claim_these,
    claimed_tasks,
    due_tenants,
    locked_pending,
    make_claimed_wait,
    make_due_wait,
    messages_for,
    not_published,
    release_waiting,
    repair_limit_wait,
    republish,
    return_to_pending,
    started_runs,
)
from django_durable_tasks.states.dependencies import (
    Released,
    blame,
    block,
    blocked_dependents,
    fail_blocked,
    force_run,
    lock_free,
    lock_rows,
    mark_upstreams,
    release,
    release_and_publish,
    release_met,
    replay_blocked,
    set_needed,
    skip_blocked,
)
from django_durable_tasks.states.endings import (
    cancel,
    expire,
    force_complete,
    leave_key,
    leave_marks,
    move_waits,
    replay,
    request_cancel,
    shorten_republish_waits,
    skip,
)
from django_durable_tasks.states.guarded_update import WAITING
from django_durable_tasks.states.inserts import (
    can_create_with_answer,
    create,
    create_many,
    create_row,
    create_stream,
    create_with_answer,
    edit,
    name_key,
    release_key,
    row_at,
    take_key,
    with_times,
)
from django_durable_tasks.states.runs import (
    Beat,
    Progress,
    end,
    heartbeat,
    locked_runs,
    start,
    still_owned,
    succeed,
    write_progress,
)
