"""The overview and the charts of the installation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, registry
from django_durable_tasks.admin import staff_tenants
from django_durable_tasks.admin.charts import (
    LINE_COLOURS,
    OTHER_COLOUR,
    STATUS_COLOURS,
    ChartFrame,
    ChartSeries,
    lines,
    seconds,
    stacked_bars,
    swatch,
)
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
from django_durable_tasks.metrics.counts import ChartData, ending_series, read_points
from django_durable_tasks.metrics.series import PERIODS, ChartPeriod, ChartPoint, Duration
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks.explanations import ago

# The charts: endings per minute by status, and how long tasks waited and ran.


ADDRESS = "admin:django_durable_tasks_charts"
_TITLES = {
    "1h": _("1 hour"),
    "24h": _("24 hours"),
    "7d": _("7 days"),
}
_TICK_MINUTES = {"1h": 10, "24h": 180, "7d": 1_440}
_QUANTILES = (("p50", 0.5), ("p95", 0.95))
_DURATIONS = (
    (Duration.RUN, _("Run time of attempts")),
    (Duration.SCHEDULER_WAIT, _("Wait for a scheduler: from due to claimed")),
    (Duration.BROKER_WAIT, _("Wait for a worker: from claimed to started")),
)


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """A chart as the page shows it: the drawing, its legend, and its values as a table."""

    title: str
    svg: SafeString
    legend: Sequence[tuple[SafeString, str]]
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class ChartQuery:
    """The query string of the page. Unknown periods are replaced by the first one."""

    period: ChartPeriod
    queue: str
    name: str

    @classmethod
    def of(cls, request: HttpRequest) -> ChartQuery:
        """Return the query of a request."""
        period = PERIODS.get(request.GET.get("period", ""), next(iter(PERIODS.values())))
        return cls(period, request.GET.get("queue", ""), request.GET.get("name", ""))

    def periods(self) -> Iterator[dict[str, Any]]:
        """Yield the links to each period with the same queue and name."""
        for name in PERIODS:
            given = {"period": name, "queue": self.queue, "name": self.name}
            query = urlencode({key: value for key, value in given.items() if value})
            yield {
                "title": _TITLES[name],
                "url": f"?{query}",
                "is_current": name == self.period.name,
            }


def charts_of(queue: str) -> str:
    """Return the address of the charts of a queue."""
    return f"{reverse(ADDRESS)}?{urlencode({'queue': queue})}"


def _moments(points: Sequence[ChartPoint], period: ChartPeriod) -> list[str]:
    layout = "%H:%M" if period.name == "1h" else "%Y-%m-%d %H:%M"
    return [f"{timezone.localtime(point.start):{layout}}" for point in points]


def _ticks(points: Sequence[ChartPoint], period: ChartPeriod) -> Iterator[tuple[int, str]]:
    """Yield the points at round times of the site's zone, with their labels."""
    each = _TICK_MINUTES[period.name]
    for index, point in enumerate(points):
        local = timezone.localtime(point.start)
        if (local.hour * 60 + local.minute) % each == 0:
            yield index, f"{local:%m-%d}" if each == 1_440 else f"{local:%H:%M}"


def _frame(key: str, title: str, data: ChartData, query: ChartQuery) -> ChartFrame:
    moments = _moments(data.points, query.period)
    description = gettext(
        "%(points)d points of %(minutes)d min from %(first)s to %(last)s. The table below contains"
        " the values."
    ) % {
        "points": len(moments),
        "minutes": query.period.step,
        "first": moments[0],
        "last": moments[-1],
    }
    ticks = list(_ticks(data.points, query.period))
    return ChartFrame(f"durable-chart-{key}", title, description, moments, ticks)


def _endings(data: ChartData, query: ChartQuery) -> DrawnChart:
    """Draw the endings per minute; the legend contains the totals of the period."""
    totals = Counter[str]()
    for point in data.points:
        totals.update(point.numbers)
    known = [status for status in STATUS_COLOURS if totals[status]]
    statuses = [*known, *sorted(set(totals) - set(known))]
    title = gettext("Endings per minute")
    frame = _frame("endings", title, data, query)
    rows = [
        ChartSeries(
            status,
            STATUS_COLOURS.get(status, OTHER_COLOUR),
            [point.rate(status) for point in data.points],
        )
        for status in statuses
    ]
    return DrawnChart(
        title,
        stacked_bars(frame, rows),
        [(swatch(row.colour), f"{row.name} {totals[row.name]:,}") for row in rows],
        statuses,
        [
            (moment, [f"{point.rate(status):,.3g}" for status in statuses])
            for moment, point in zip(frame.moments, data.points, strict=True)
        ],
    )


def _durations(
    duration: Duration, title: str, data: ChartData, query: ChartQuery
) -> DrawnChart | None:
    """Draw the quantiles of a duration; None if none was counted."""
    rows = [
        ChartSeries(name, colour, [point.quantile(duration, share) for point in data.points])
        for (name, share), colour in zip(_QUANTILES, LINE_COLOURS, strict=True)
    ]
    if all(value is None for value in rows[0].values):
        return None
    frame = _frame(duration.value.replace("_", "-"), title, data, query)
    return DrawnChart(
        title,
        lines(frame, rows),
        [(swatch(row.colour), row.name) for row in rows],
        [row.name for row in rows],
        [
            (moment, [seconds(row.values[index]) for row in rows])
            for index, moment in enumerate(frame.moments)
        ],
    )


def _charts(data: ChartData, query: ChartQuery) -> Iterator[DrawnChart]:
    if any(point.numbers for point in data.points):
        yield _endings(data, query)
        for duration, title in _DURATIONS:
            drawn = _durations(duration, str(title), data, query)
            if drawn is not None:
                yield drawn


def _remarks(request: HttpRequest, data: ChartData, query: ChartQuery) -> Iterator[str]:
    """Yield why the charts are empty or shorter than the period."""
    settings = conf.settings()
    if not settings.METRICS:
        yield gettext("Nothing is counted: METRICS is not set in DURABLE_TASKS.")
    if staff_tenants.is_limited(request) and not settings.METRICS_TENANTS:
        yield gettext(
            "You see only the tenants assigned to you, and METRICS_TENANTS is not set, so nothing"
            " is counted for each tenant."
        )
    if query.period.minutes * 60 > settings.METRICS_RETENTION:
        yield gettext("Counts per minute are kept for %s (METRICS_RETENTION).") % ago(
            settings.METRICS_RETENTION
        )
    if data.is_cut:
        first = data.points[0].start
        yield (
            gettext(
                "The charts begin at %s, because the period has too many counts. Choose a queue or"
                " a task to see all of it."
            )
            % f"{timezone.localtime(first):%Y-%m-%d %H:%M}"
        )


def _chart_facts(request: HttpRequest, now: datetime) -> dict[str, Any]:
    query = ChartQuery.of(request)
    found = ending_series(staff_tenants.tenants_of(request))
    ids = found.selected(query.queue, query.name)
    data = read_points(ids, query.period, now)
    return {
        "query": query,
        "periods": query.periods(),
        "queue_choices": sorted({*found.queues(), query.queue} - {""}),
        "name_choices": sorted({*found.names(), query.name} - {""}),
        "remarks": list(_remarks(request, data, query)),
        "charts": list(_charts(data, query)),
        "asked_at": now,
    }


def charts_view_for(screen: Any) -> Callable[[HttpRequest], HttpResponse]:
    """Return the view of the charts, inside the site of this screen."""

    def view(request: HttpRequest) -> HttpResponse:
        if not screen.has_view_permission(request):
            raise PermissionDenied
        context = {
            **screen.admin_site.each_context(request),
            **_chart_facts(request, database_now()),
            "opts": screen.opts,
            "media": screen.media,
            "title": gettext("Charts"),
        }
        return TemplateResponse(request, "admin/django_durable_tasks/charts.html", context)

    return view


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
    if (
        node.skew is not None
        and abs(node.skew) > conf.settings().SKEW_MAX
        and not seen.is_silent(node)
    ):
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
            "charts": charts_of(depth.queue),
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
