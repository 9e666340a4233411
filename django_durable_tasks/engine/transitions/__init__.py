"""The only writer of Task.status: one function per transition of ``rules.states``.

Each transition is one guarded UPDATE of many rows. The UPDATE requires the status that the
transition starts from, and the epoch that the caller read. If it matches no row, nothing has
changed, and the row count shows this. Transitions raise ``epoch``, except heartbeats and repeated
messages. Rows are locked in primary-key order, unless locked rows are skipped. Each transition
that changes rows sends ``tasks_transitioned``. Frequent transitions also have an SQL form in
``db/sql/``, which passes the same tests as the ORM form.
"""

from django_durable_tasks.engine.transitions.batches import (
    Success,
    due_in_batch,
    owned,
    succeed_many,
    take,
    take_due,
    undo_starts,
)
from django_durable_tasks.engine.transitions.claims import (
    claim,
    claim_these,
    locked_pending,
    messages_for,
    not_published,
    republish,
    return_to_pending,
)
from django_durable_tasks.engine.transitions.dependencies import (
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
from django_durable_tasks.engine.transitions.endings import (
    cancel,
    expire,
    force_complete,
    replay,
    request_cancel,
    skip,
)
from django_durable_tasks.engine.transitions.guarded_update import WAITING
from django_durable_tasks.engine.transitions.inserts import (
    can_create_with_answer,
    create,
    create_many,
    create_row,
    create_stream,
    create_with_answer,
    edit,
    name_key,
    release_key,
    take_key,
)
from django_durable_tasks.engine.transitions.limit_waits import (
    age,
    change_waiting_limit,
    make_claimed_wait,
    make_due_wait,
    release_waiting,
    repair_limit_wait,
)
from django_durable_tasks.engine.transitions.requests import leave_key, leave_marks
from django_durable_tasks.engine.transitions.returned_rows import (
    BlockedDependent,
    ClaimedTask,
    StartedRun,
    claimed_tasks,
    started_runs,
)
from django_durable_tasks.engine.transitions.row_values import row_at, with_times
from django_durable_tasks.engine.transitions.runs import (
    Beat,
    end,
    heartbeat,
    locked_runs,
    start,
    still_owned,
    succeed,
)

__all__ = [
    "WAITING",
    "Beat",
    "BlockedDependent",
    "ClaimedTask",
    "Released",
    "StartedRun",
    "Success",
    "age",
    "blame",
    "block",
    "blocked_dependents",
    "can_create_with_answer",
    "cancel",
    "change_waiting_limit",
    "claim",
    "claim_these",
    "claimed_tasks",
    "create",
    "create_many",
    "create_row",
    "create_stream",
    "create_with_answer",
    "due_in_batch",
    "edit",
    "end",
    "expire",
    "fail_blocked",
    "force_complete",
    "force_run",
    "heartbeat",
    "leave_key",
    "leave_marks",
    "lock_free",
    "lock_rows",
    "locked_pending",
    "locked_runs",
    "make_claimed_wait",
    "make_due_wait",
    "mark_upstreams",
    "messages_for",
    "name_key",
    "not_published",
    "owned",
    "release",
    "release_and_publish",
    "release_key",
    "release_met",
    "release_waiting",
    "repair_limit_wait",
    "replay",
    "replay_blocked",
    "republish",
    "request_cancel",
    "return_to_pending",
    "row_at",
    "set_needed",
    "skip",
    "skip_blocked",
    "start",
    "started_runs",
    "still_owned",
    "succeed",
    "succeed_many",
    "take",
    "take_due",
    "take_key",
    "undo_starts",
    "with_times",
]
