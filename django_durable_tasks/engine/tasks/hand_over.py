"""Hands the capacity of an ended run to the next tasks that wait for it.

Called by the process of the run after its ending is committed, so that the next task does not wait
for a scheduler's poll. The claim takes the lock of limits, counts the usage and enforces every
limit, so several processes may hand over at once. If the process dies, the release of the
schedulers finds the capacity.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django_durable_tasks import conf
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.limits import admission, config, overlap, release, waitlist
from django_durable_tasks.engine.limits.config import LimitConfig
from django_durable_tasks.engine.limits.waitlist import WaitingTask
from django_durable_tasks.engine.tasks.claim import in_publishing_order
from django_durable_tasks.engine.transitions import ClaimedTask
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.rules.tasks.runs import Run

_MOST = 10
"""The maximum number of tasks that one ending claims. More than one, because capacity that another
process did not hand over is found too.
"""


def frees_capacity(ended: Sequence[Run]) -> bool:
    """Return whether a limit applies to any of these runs, whose capacity their end frees.

    Executes no statement, except that the limits are read once a second.
    """
    limit_config = config.limits_without_connection()
    # Cheap for a batch: its runs have few names.
    return limit_config.may_bind({(run.name, run.queue) for run in ended}) and bool(
        _freed(limit_config, ended)
    )


def _freed(limit_config: LimitConfig, ended: Sequence[Run]) -> set[str]:
    return {
        scope
        for run in ended
        for scope in limit_config.freed(run.name, run.queue, run.tenant_id, run.limit_key)
    }


def claim_next(ended: Sequence[Run], node: uuid.UUID) -> list[TaskMessage]:
    """Claim the next tasks that wait for the limits of these ended runs; return their messages.

    If no task waits, it is one index probe.
    """
    limit_config = config.limits_in_force()
    waiting = waitlist.heads(sorted(_freed(limit_config, ended)))
    if not waiting:
        return []
    claimed = _claim(limit_config, waiting, max(_MOST, len(ended)), node)
    return transitions.messages_for(overlap.admitted(claimed))


@retry_on_deadlock
def _claim(
    limit_config: LimitConfig, waiting: Sequence[WaitingTask], limit: int, node: uuid.UUID
) -> list[ClaimedTask]:
    with tables.atomic():
        gate = admission.LimitAdmission(limit_config)
        usage, now = gate.count_usage()
        admitted = list[ClaimedTask]()
        # The waitlists were read without the lock. If others have claimed from them meanwhile, they
        # are read again.
        for reread in (False, True):
            ids = release.select_next(waiting, now, limit, usage, reread=reread)
            claimed = _claim_waiting(ids, node) if ids else []
            fit = gate.admit_claimed(in_publishing_order(claimed, now), in_turn=True)
            admitted += fit
            if len(claimed) == len(ids):
                break
            for task in fit:
                usage.add(task.name, task.queue, task.tenant_id, task.limit_key, task.weight)
        gate.close()
    return admitted


def _claim_waiting(ids: Sequence[uuid.UUID], node: uuid.UUID) -> list[ClaimedTask]:
    return transitions.claim_these(ids, node, conf.settings().REPUBLISH_AFTER, waiting=True)
