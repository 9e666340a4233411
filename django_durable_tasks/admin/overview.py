"""The overview of the installation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext

from django_durable_tasks import conf, registry
from django_durable_tasks.admin.display import list_of, since
from django_durable_tasks.admin.staff_tenants import is_limited
from django_durable_tasks.celery import inspect
from django_durable_tasks.cluster.queues import (
    MISROUTED_FOR,
    Depth,
    shown_count,
    shown_total,
    totals,
)
from django_durable_tasks.cluster.status import Overview, overview
from django_durable_tasks.limits.operator_limits import limit_waits
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.tasks.explanations import ago

# The overview: backlog, running tasks, leader, live nodes and problems.


def troubles(seen: Overview) -> Iterator[str]:
    """Yield the problems, the most severe first, each with its remedy."""
    if not seen.alive(NodeKind.SCHEDULER):
        yield gettext(
            "No scheduler is alive: waiting tasks are not published. Run `manage.py run_scheduler`."
        )
    elif not seen.is_led:
        yield gettext(
            "No scheduler is the leader: runs with an expired lease are not marked LOST, and lost"
            " messages are not republished."
        )
    for node in seen.nodes:
        yield from _troubles_of_node(node, seen)
    for depth in seen.depths:
        yield from _troubles_of(depth, seen.now)
    yield from _troubles_of_schedules(seen)
    if (noticed := seen.clock_step) is not None:
        values = {
            "step": f"{noticed.clock_step or 0.0:+,.1f}",
            "ago": ago((seen.now - (noticed.clock_step_at or seen.now)).total_seconds()),
        }
        yield gettext("The database's clock was set by %(step)s s, %(ago)s ago.") % values
    yield from limit_waits(seen.limits)
    for name, number in seen.unknown.items():
        yield gettext("%(number)d tasks wait for %(name)s, which this process does not have.") % {
            "number": number,
            "name": name,
        }
    if seen.dead_letters > conf.settings().DEAD_LETTERS_MAX:
        yield (
            ngettext("%d dead letter is open.", "%d dead letters are open.", seen.dead_letters)
            % seen.dead_letters
        )


def _troubles_of_node(node: Node, seen: Overview) -> Iterator[str]:
    if node.pk in seen.stalled:
        values = {"name": node.name, "why": seen.stalled[node.pk]}
        yield gettext("Node %(name)s has stalled: %(why)s. Restart it.") % values
    if node.skew is not None and abs(node.skew) > conf.SKEW_MAX and not seen.is_silent(node):
        values = {"name": node.name, "skew": f"{abs(node.skew):.1f}"}
        yield (
            gettext("Node %(name)s: the clock of its host is %(skew)s s from the database's.")
            % values
        )


def _troubles_of_schedules(seen: Overview) -> Iterator[str]:
    if seen.quarantined:
        yield (
            ngettext(
                "%d schedule is QUARANTINED: it could not be triggered. Correct it, then"
                " resume it.",
                "%d schedules are QUARANTINED: they could not be triggered. Correct them,"
                " then resume"
                " them.",
                seen.quarantined,
            )
            % seen.quarantined
        )
    if seen.late_schedules and seen.is_led:
        yield (
            ngettext(
                "%d schedule is late: no scheduler has processed its fire time.",
                "%d schedules are late: no scheduler has processed their fire times.",
                seen.late_schedules,
            )
            % seen.late_schedules
        )


def _troubles_of(depth: Depth, now: datetime) -> Iterator[str]:
    number = depth.due + depth.limited + depth.queued
    values = {
        "queue": depth.queue,
        "number": number,
        "tasks": ngettext("%d task", "%d tasks", number) % number,
    }
    if depth.rejected:
        yield gettext(
            "Queue %(queue)s: the broker rejects its messages (%(why)s): %(tasks)s to publish."
        ) % {**values, "why": depth.rejected}
    if depth.misrouted_at is not None and now - depth.misrouted_at < MISROUTED_FOR:
        yield gettext(
            "Queue %(queue)s: messages for its tasks were consumed from queue %(other)s and were"
            " ignored."
        ) % {**values, "other": depth.misrouted_from}
    late = (now - depth.oldest_due_at).total_seconds() if depth.oldest_due_at else 0.0
    if depth.paused_at:
        yield gettext("Queue %(queue)s is paused and holds %(tasks)s.") % values
    elif values["number"] and not depth.workers:
        yield gettext("Queue %(queue)s has %(tasks)s to start and no live worker.") % values
    elif late > conf.settings().OLDEST_DUE_MAX:
        yield gettext(
            "Queue %(queue)s is late: its oldest task could have started %(late)s ago."
        ) % {
            **values,
            "late": ago(late),
        }


def rows_of(depths: list[Depth], now: datetime) -> list[dict[str, Any]]:
    """Return the queues as the tables show them."""
    return [
        {
            "depth": depth,
            "pending": shown_count(depth.pending),
            "due": shown_count(depth.due),
            "age": since(depth.oldest_due_at, now),
            "paused": since(depth.paused_at, now) if depth.paused_at else "",
            "urls": {
                status: list_of("task", queue=depth.queue, status__exact=status)
                for status in ("PENDING", "QUEUED", "RUNNING")
            },
            "unstarted": (
                not depth.paused_at
                and not depth.workers
                and bool(depth.due + depth.limited + depth.queued)
            ),
        }
        for depth in depths
    ]


def _facts() -> dict[str, Any]:
    problems = [problem for problem in (inspect.load_tasks(),) if problem]
    seen = overview(registry.names())
    broker = inspect.broker_problem()
    if broker:
        problems.insert(0, gettext("The broker does not answer from here: %s.") % broker)
    workers = seen.alive(NodeKind.WORKER)
    return {
        "seen": seen,
        "troubles": [*problems, *troubles(seen)],
        "queues": rows_of(seen.depths, seen.now),
        "totals": [
            (
                status,
                list_of("task", status__exact=status),
                f"{number}{'' if exact else '+'}",
            )
            for status, (number, exact) in totals(seen.depths).items()
        ],
        "due": shown_total(depth.due + depth.limited for depth in seen.depths),
        "schedulers": len(seen.alive(NodeKind.SCHEDULER)),
        "workers": len(workers),
        "concurrency": sum(node.concurrency for node in workers),
    }


def view_for(screen: Any) -> Callable[[HttpRequest], HttpResponse]:
    """Return the view of the overview, inside the site of this screen."""

    def view(request: HttpRequest) -> HttpResponse:
        if not screen.has_view_permission(request):
            raise PermissionDenied
        if is_limited(request):
            text = gettext("The overview shows all tenants. You see only those assigned to you.")
            screen.message_user(request, text)
            return HttpResponseRedirect(list_of("task"))
        context = {
            **screen.admin_site.each_context(request),
            **_facts(),
            "opts": screen.opts,
            "media": screen.media,
            "title": gettext("Overview"),
        }
        return TemplateResponse(request, "admin/django_durable_tasks/overview.html", context)

    return view
