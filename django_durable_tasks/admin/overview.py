"""The overview of the installation."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.translation import ngettext

from django_durable_tasks import conf, registry
from django_durable_tasks.admin.display import list_of, since
from django_durable_tasks.admin.staff_tenants import is_limited
from django_durable_tasks.celery import inspect
from django_durable_tasks.cluster.queues import (
    MISROUTED_FOR,
    Depth,
    totals,
)
from django_durable_tasks.cluster.status import Overview, overview
from django_durable_tasks.limits.operator_limits import limit_waits
from django_durable_tasks.limits.scopes import waiting
from django_durable_tasks.models import NodeKind
from django_durable_tasks.tasks.explanations import ago

# The overview: backlog, running tasks, leader, live nodes and problems.


def troubles(seen: Overview) -> Iterator[str]:
    """Yield the problems, the most severe first, each with its remedy."""
    if not seen.alive(NodeKind.SCHEDULER):
        yield (
            "No scheduler is alive: waiting tasks are not published. Run `manage.py run_scheduler`."
        )
    elif not seen.is_led:
        yield (
            "No scheduler is the leader: runs with an expired lease are not marked LOST, and lost"
            " messages are not republished."
        )
    for node in seen.nodes:
        if node.pk in seen.stalled:
            yield f"Node {node.name} has stalled: {seen.stalled[node.pk]}. Restart it."
        if node.skew is not None and abs(node.skew) > conf.SKEW_MAX and not seen.is_silent(node):
            skew = f"{abs(node.skew):.1f} s"
            yield f"Node {node.name}: the clock of its host is {skew} from the database's."
    for depth in seen.depths:
        yield from _troubles_of(depth, seen.now)
    if seen.quarantined:
        yield (
            ngettext(
                "%s schedule is QUARANTINED: it could not be triggered. Correct it, then resume"
                " it.",
                "%s schedules are QUARANTINED: they could not be triggered. Correct them, then"
                " resume them.",
                seen.quarantined,
            )
            % seen.quarantined
        )
    if seen.late_schedules and seen.is_led:
        yield (
            ngettext(
                "%s schedule is late: no scheduler has processed its fire time.",
                "%s schedules are late: no scheduler has processed their fire times.",
                seen.late_schedules,
            )
            % seen.late_schedules
        )
    if (noticed := seen.clock_step) is not None:
        since = ago((seen.now - (noticed.clock_step_at or seen.now)).total_seconds())
        yield f"The database's clock was set by {noticed.clock_step or 0.0:+,.1f} s, {since} ago."
    yield from limit_waits(seen.limits)
    for name, number in seen.unknown.items():
        yield f"{waiting(number)} for {name}, which this process does not have."
    if seen.dead_letters > conf.settings().DEAD_LETTERS_MAX:
        letters = ngettext("dead letter is", "dead letters are", seen.dead_letters)
        yield f"{seen.dead_letters} {letters} open."


def _troubles_of(depth: Depth, now: datetime) -> Iterator[str]:
    number = depth.to_start
    tasks = ngettext("%s task", "%s tasks", number) % number
    if depth.rejected:
        why = f"the broker rejects its messages ({depth.rejected})"
        yield f"Queue {depth.queue}: {why}: {tasks} to publish."
    if depth.misrouted_at is not None and now - depth.misrouted_at < MISROUTED_FOR:
        yield (
            f"Queue {depth.queue}: messages for its tasks were consumed from queue"
            f" {depth.misrouted_from} and were ignored."
        )
    late = (now - depth.oldest_due_at).total_seconds() if depth.oldest_due_at else 0.0
    if depth.paused_at:
        yield f"Queue {depth.queue} is paused and holds {tasks}."
    elif number and not depth.workers:
        yield f"Queue {depth.queue} has {tasks} to start and no live worker."
    elif late > conf.settings().OLDEST_DUE_MAX:
        yield (f"Queue {depth.queue} is late: its oldest task could have started {ago(late)} ago.")


def rows_of(depths: list[Depth], now: datetime) -> list[dict[str, Any]]:
    """Return the queues as the tables show them."""
    return [
        {
            "depth": depth,
            "pending": str(depth.pending),
            "due": str(depth.due),
            "limited": str(depth.limited),
            "age": since(depth.oldest_due_at, now),
            "paused": since(depth.paused_at, now) if depth.paused_at else "",
            "urls": {
                status: list_of("task", queue=depth.queue, status__exact=status)
                for status in ("PENDING", "QUEUED", "RUNNING")
            },
            "unstarted": (not depth.paused_at and not depth.workers and bool(depth.to_start)),
        }
        for depth in depths
    ]


def overview_view(model_admin: Any, request: HttpRequest) -> Any:
    """Show the overview to a user who sees all tenants."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    if is_limited(request):
        text = "The overview shows all tenants. You see only those assigned to you."
        model_admin.message_user(request, text)
        return HttpResponseRedirect(list_of("task"))
    problems = [problem for problem in (inspect.load_tasks(),) if problem]
    seen = overview(registry.names())
    broker = inspect.broker_problem()
    if broker:
        problems.insert(0, f"The broker does not answer from here: {broker}.")
    workers = seen.alive(NodeKind.WORKER)
    facts = {
        "seen": seen,
        "troubles": [*problems, *troubles(seen)],
        "queues": rows_of(seen.depths, seen.now),
        "totals": [
            (status, list_of("task", status__exact=status), str(number))
            for status, number in totals(seen.depths).items()
        ],
        "due": str(sum(depth.due + depth.limited for depth in seen.depths)),
        "schedulers": len(seen.alive(NodeKind.SCHEDULER)),
        "workers": len(workers),
        "concurrency": sum(node.concurrency for node in workers),
    }
    return model_admin.page(request, "overview", "Overview", **facts)
