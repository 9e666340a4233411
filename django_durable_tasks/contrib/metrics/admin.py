"""The admin page with the charts: endings per minute by status, and how long tasks waited and
ran. It is the list of the table of counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.contrib.metrics.charts import (
    LINE_COLOURS,
    OTHER_COLOUR,
    PERIODS,
    STATUS_COLOURS,
    ChartData,
    ChartFrame,
    ChartPeriod,
    ChartSeries,
    endings,
    lines,
    read_points,
    seconds,
    stacked_bars,
    swatch,
)
from django_durable_tasks.contrib.metrics.models import MetricMinute
from django_durable_tasks.contrib.metrics.series import Duration, Span
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks.explanations import ago

_TITLES = {"1h": _("1 hour"), "24h": _("24 hours"), "7d": _("7 days")}
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
            parameters = {"period": name, "queue": self.queue, "name": self.name}
            query = urlencode({key: value for key, value in parameters.items() if value})
            yield {
                "title": _TITLES[name],
                "url": f"?{query}",
                "is_current": name == self.period.name,
            }


def _frame(key: str, title: str, data: ChartData, query: ChartQuery) -> ChartFrame:
    layout = "%H:%M" if query.period.name == "1h" else "%Y-%m-%d %H:%M"
    starts = [timezone.localtime(point.start) for point in data.points]
    moments = [f"{start:{layout}}" for start in starts]
    description = gettext(
        "%(points)d points of %(minutes)d min from %(first)s to %(last)s. The table below contains"
        " the values."
    ) % {
        "points": len(moments),
        "minutes": query.period.step,
        "first": moments[0],
        "last": moments[-1],
    }
    # At round times of the site's zone.
    each = _TICK_MINUTES[query.period.name]
    ticks = [
        (index, f"{start:%m-%d}" if each == 1_440 else f"{start:%H:%M}")
        for index, start in enumerate(starts)
        if (start.hour * 60 + start.minute) % each == 0
    ]
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


def _remarks(request: HttpRequest, data: ChartData, query: ChartQuery) -> Iterator[str]:
    """Yield why the charts are empty or shorter than the period."""
    if filters.is_limited(request) and not conf.settings().METRICS_TENANTS:
        yield gettext(
            "You see only the tenants assigned to you, and METRICS_TENANTS is not set, so nothing"
            " is counted for each tenant."
        )
    now = database_now()
    kept = (now - conf.kept_from("METRICS", now)).total_seconds()
    if query.period.minutes * 60 > kept:
        yield gettext("Counts are kept for %s (METRICS in RETENTION).") % ago(kept)
    if data.is_cut:
        first = data.points[0].start
        yield (
            gettext(
                "The charts begin at %s, because the period has too many counts. Choose a queue or"
                " a task to see all of it."
            )
            % f"{timezone.localtime(first):%Y-%m-%d %H:%M}"
        )


def _facts(request: HttpRequest, now: datetime) -> dict[str, Any]:
    query, rows = ChartQuery.of(request), endings(filters.tenants_of(request))
    series = list(rows.filter(span=Span.TOTAL).values_list("queue", "name"))
    queues, names = ({pair[place] for pair in series} for place in (0, 1))
    for field, value, counted in (("queue", query.queue, queues), ("name", query.name, names)):
        if value:
            rows = rows.filter(**{field: value}) if value in counted else rows.none()
    data = read_points(rows, query.period, now)
    charts = list[DrawnChart]()
    if any(point.numbers for point in data.points):
        drawn = (_durations(kind, str(title), data, query) for kind, title in _DURATIONS)
        charts = [_endings(data, query), *(chart for chart in drawn if chart is not None)]
    return {
        "query": query,
        "periods": query.periods(),
        "queue_choices": sorted({*queues, query.queue} - {""}),
        "name_choices": sorted({*names, query.name} - {""}),
        "remarks": list(_remarks(request, data, query)),
        "charts": charts,
        "asked_at": now,
    }


@admin.register(MetricMinute)
class MetricMinuteAdmin(ReadOnlyAdmin):
    """The charts, for users who may view tasks."""

    tenant_path = None

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may view tasks."""
        return request.user.has_perm("django_durable_tasks.view_task")

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may view tasks."""
        return self.has_view_permission(request)

    def get_urls(self) -> list[URLPattern]:
        """Return the page of the charts in place of the list."""
        name = "durable_tasks_metrics_metricminute_changelist"
        return [path("", self.admin_site.admin_view(self.charts), name=name)]

    def charts(self, request: HttpRequest) -> HttpResponse:
        """Draw the charts."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            **_facts(request, database_now()),
            "opts": self.opts,
            "media": self.media,
            "title": gettext("Charts"),
        }
        return TemplateResponse(request, "admin/durable_tasks_metrics/charts.html", context)
