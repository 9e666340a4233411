"""The only writer of Task.status: one function a transition of ``rules.states``, guarded, set-based, announced.

Every move shows the status it leaves, and the epoch or the locked rows it speaks of; the row count is the verdict, and
a move that matches nothing changed nothing. Moves of owner raise ``epoch``; heartbeats and repeated rings do not.
Rows are locked in primary-key order. Hot moves have a second hand in ``sql/``; both hands pass the same tests.
"""

from django_durable_tasks.lifecycle.transitions.births import create, create_many, edit, release_key
from django_durable_tasks.lifecycle.transitions.endings import (
    cancel,
    expire,
    force_complete,
    replay,
    request_cancel,
    skip,
)
from django_durable_tasks.lifecycle.transitions.graphs import (
    Released,
    below,
    blame,
    fail_blocked,
    force_run,
    hold_back,
    lock_rows,
    mark_upstreams,
    release,
    release_met,
    release_rung,
    replay_blocked,
    set_needed,
    skip_blocked,
)
from django_durable_tasks.lifecycle.transitions.guards import NOW, WAITING, atomic, database, tasks
from django_durable_tasks.lifecycle.transitions.out import (
    RING_COLUMNS,
    claim,
    claim_these,
    hand_back,
    locked_pending,
    ring_again,
    take,
)
from django_durable_tasks.lifecycle.transitions.parking import (
    age,
    let_go,
    park_claimed,
    park_due,
    park_elsewhere,
    set_right,
)
from django_durable_tasks.lifecycle.transitions.runs import (
    RUN_COLUMNS,
    end,
    heartbeat,
    locked_runs,
    start,
    succeed,
)

__all__ = [
    "NOW",
    "RING_COLUMNS",
    "RUN_COLUMNS",
    "WAITING",
    "Released",
    "age",
    "atomic",
    "below",
    "blame",
    "cancel",
    "claim",
    "claim_these",
    "create",
    "create_many",
    "database",
    "edit",
    "end",
    "expire",
    "fail_blocked",
    "force_complete",
    "force_run",
    "hand_back",
    "heartbeat",
    "hold_back",
    "let_go",
    "lock_rows",
    "locked_pending",
    "locked_runs",
    "mark_upstreams",
    "park_claimed",
    "park_due",
    "park_elsewhere",
    "release",
    "release_key",
    "release_met",
    "release_rung",
    "replay",
    "replay_blocked",
    "request_cancel",
    "ring_again",
    "set_needed",
    "set_right",
    "skip",
    "skip_blocked",
    "start",
    "succeed",
    "take",
    "tasks",
]
