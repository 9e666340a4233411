"""Checks of what waits: silent runs, rings that nobody rings again, rows that nobody publishes, rows that are held.

Time is only judged where it passed under one reign, or under none: after an outage of the database everything is late,
and is dealt with in its turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Exists, Max, OuterRef, Q
from django.db.models.functions import Greatest

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import attempts, claims, limits, slots, transitions
from django_durable_tasks.lifecycle.edges import runs
from django_durable_tasks.lifecycle.ringing import ring_after_commit
from django_durable_tasks.lifecycle.verifying_walks import PATIENCE, Check, Look, Rows, finding, ground_rows
from django_durable_tasks.models import Node, Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task import HELD
from django_durable_tasks.rules.endings import Kind, Outcome
from django_durable_tasks.rules.findings import Finding, Severity
from django_durable_tasks.rules.states import Status

NO_LEADER = "Nobody leads: run `manage.py run_scheduler`."
_LOST = Outcome(kind=Kind.CRASHED, error="The run fell silent, and nobody ended it.", error_type="Lost")


def silent(look: Look, rows: Rows) -> list[Finding]:
    """RUNNING tasks whose lease is long over, or whose node left or died long ago."""
    patience = max(PATIENCE, conf.settings().LEASE)
    if not look.may_judge(patience):
        return []
    gone = Exists(ground_rows(Node).filter(pk=OuterRef("node"), stopped_at__lt=look.ago(patience)))
    found = rows.filter(status=Status.RUNNING).annotate(gone=gone).filter(
        Q(lease_until__lt=look.ago(patience)) | Q(gone=True)
    )  # fmt: skip
    return [
        finding("silent-runs", "task", pk, "node" if left else "lease_until", node if left else lease,
                "a node that lives, or the run is lost" if left else "renewed, or the run is lost",
                severity=Severity.LATE, repair="lose the run" if look.led else "", advice="" if look.led else NO_LEADER)
        for pk, node, lease, left in found.values_list("pk", "node", "lease_until", "gone")
    ]  # fmt: skip


def _lose(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    verdicts = attempts.end_runs(transitions.tasks().filter(pk__in=keys), lambda _: _LOST)
    return {key: f"the run is lost, the task is {verdict.status}" for key, verdict in verdicts.items()}


def unrung(look: Look, rows: Rows) -> list[Finding]:
    """QUEUED tasks that should have been rung again long ago."""
    patience = max(PATIENCE, 4 * conf.settings().RING_AGAIN)
    if not look.may_judge(patience):
        return []
    found = rows.filter(status=Status.QUEUED, alarm_at__lt=look.ago(patience))
    return [
        finding("unrung", "task", pk, "alarm_at", alarm, "rung again when it was over", severity=Severity.LATE,
                repair="ring it", advice="" if look.led else NO_LEADER)
        for pk, alarm in found.values_list("pk", "alarm_at")
    ]  # fmt: skip


def _ring(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    keys = [one.key for one in findings]
    ring_after_commit(claims.ring_again(transitions.tasks().filter(pk__in=keys), look.now, len(keys)))
    return dict.fromkeys(keys, "rung")


def unpublished(look: Look, rows: Rows) -> list[Finding]:
    """PENDING tasks that are long due in a queue with room, in which nothing moves; a backlog that moves is none."""
    patience = conf.settings().OLDEST_DUE_MAX
    if not look.led or not look.may_judge(max(PATIENCE, patience)):
        return []
    overdue = list(rows.filter(status=Status.PENDING, alarm_at__lt=look.ago(patience)).values_list(
        "pk", "queue", "alarm_at"
    ))  # fmt: skip
    if not overdue:
        return []
    picture = limits.picture()
    still = {queue for _, queue, _ in overdue if picture.room(queue)} - _moving(
        {queue for _, queue, _ in overdue}, look
    )
    return [
        finding("unpublished", "task", pk, "alarm_at", alarm,
                f"published within {patience:g} s, for queue {queue} is open and has room", severity=Severity.LATE,
                advice="Look at the schedulers' logs, and at `manage.py durable status`.")
        for pk, queue, alarm in overdue if queue in still
    ]  # fmt: skip


def _moving(queues: Iterable[str], look: Look) -> set[str]:
    """Return in which of these queues something runs, or was published of late: what waits there waits its turn."""
    busy = Q(status=Status.RUNNING) | Q(status=Status.QUEUED, updated_at__gte=look.ago(PATIENCE))
    return set(transitions.tasks().filter(busy, queue__in=list(queues)).order_by().values_list("queue", flat=True))


# Slots ------------------------------------------------------------------------------------------------------------


def held_for_nobody(look: Look, rows: Rows) -> list[Finding]:
    """Tasks that are held although their slot has been free for a while."""
    if not look.may_judge(PATIENCE):
        return []
    held = list(rows.filter(
        status=Status.PENDING, slot__isnull=False, held_for=None, alarm_at__gte=HELD, updated_at__lt=look.ago(PATIENCE)
    ).values_list("pk", "slot", "recurring_task_id"))  # fmt: skip
    wanted = {slot for _, slot, _ in held}
    if not wanted:
        return []
    free = {slot for slot, several in slots.opened(wanted).items() if all(task.held for task in several)}
    recent = _freed_of_late(free, {schedule for *_, schedule in held if schedule is not None}, look.ago(PATIENCE))
    return [
        finding("held-for-nobody", "task", pk, "slot", slot, "let go, because nobody holds the slot",
                severity=Severity.LATE, repair="let the oldest of the slot go", advice="" if look.led else NO_LEADER)
        for pk, slot, _ in held if slot in free - recent
    ]  # fmt: skip


def _freed_of_late(free: Iterable[str], schedules: Iterable[Any], cutoff: datetime) -> set[str]:
    """Return the slots that were held a moment ago, or in which something moved since."""
    ended = transitions.tasks().filter(slot__in=list(free)).order_by().values_list("slot")
    found = {slot for slot, last in ended.annotate(last=Max("completed_at")) if last is not None and last >= cutoff}
    moved = transitions.tasks().in_slots(free).filter(updated_at__gte=cutoff).order_by()
    found |= {slot for slot in moved.values_list("slot", flat=True) if slot is not None}
    if runs().filter(recurring_task__in=list(schedules), completed_at__gte=cutoff).exists():
        return set(free)
    return found


def _let_go(look: Look, findings: Sequence[Finding]) -> Mapping[Any, str]:
    of: dict[Any, list[Any]] = defaultdict(list)
    for one in findings:
        of[one.found].append(one.key)
    going = [several[0].task_id for several in slots.opened(of).values() if all(task.held for task in several)]
    these = transitions.tasks().held().filter(pk__in=going)
    transitions.edit(these, alarm_at=Greatest("run_at", DatabaseNow()))
    return dict.fromkeys((key for keys in of.values() for key in keys), "the oldest of its slot goes on")


CHECKS = tuple(
    Check(name=name, group="tasks", question=question, ground=Task, judge=judge, repair=repair)
    for name, question, judge, repair in (
        ("silent-runs", "Is each run alive, or lost in time?", silent, _lose),
        ("unrung", "Is what was published and not started rung again?", unrung, _ring),
        ("unpublished", "Is what is due published?", unpublished, None),
        ("held-for-nobody", "Does each held task wait for somebody?", held_for_nobody, _let_go),
    )
)
