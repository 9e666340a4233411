"""The admin page with the charts: endings per minute by status, and how long tasks waited and
ran. It is the list of the table of counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.forms.utils import flatatt
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.contrib.metrics import series
from django_durable_tasks.contrib.metrics.counts import counts
from django_durable_tasks.contrib.metrics.models import MetricMinute
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks.explanations import ago

# The periods of charts, the endings and durations of each point, and quantiles.

# The kinds of series whose numbers are endings.
ENDING_KINDS = (series.MetricKind.ATTEMPT, series.MetricKind.ENDED)
# Entries of the attempt log that do not end an attempt of the task's present owner.
NOT_ENDINGS = (LogStatus.FENCED, LogStatus.DUPLICATE)
# How many rows one chart reads at most: those that take about a second.
ROWS_MAX = 25_000
_CHUNK = 2_000


@dataclass(frozen=True, slots=True)
class ChartPeriod:
    """A period before now: ``points`` points of ``step`` minutes. 60 is a multiple of the step."""

    name: str
    points: int
    step: int

    @property
    def minutes(self) -> int:
        """The length of the period."""
        return self.points * self.step

    def start(self, now: datetime) -> datetime:
        """Return the start of the first point. The last point contains ``now``."""
        last = series.minute_of(now)
        last -= timedelta(minutes=last.minute % self.step)
        return last - series.MINUTE * self.step * (self.points - 1)


PERIODS = {
    one.name: one
    for one in (ChartPeriod("1h", 60, 1), ChartPeriod("24h", 96, 15), ChartPeriod("7d", 168, 60))
}


@dataclass(slots=True)
class ChartPoint:
    """What was counted in ``minutes`` minutes from ``start``: numbers by status, and durations."""

    start: datetime
    minutes: int
    numbers: dict[str, int] = field(default_factory=dict)
    durations: dict[str, series.Distribution] = field(default_factory=dict)

    def add(self, status: str, number: int, durations: Mapping[str, series.Distribution]) -> None:
        """Add a number of endings with their durations."""
        self.numbers[status] = self.numbers.get(status, 0) + number
        for name, distribution in durations.items():
            self.durations.setdefault(name, series.Distribution()).add(distribution)

    def rate(self, status: str) -> float:
        """Return the endings per minute."""
        return self.numbers.get(status, 0) / self.minutes

    def quantile(self, duration: str, share: float) -> float | None:
        """Return the quantile of a duration in seconds; None if none was counted."""
        distribution = self.durations.get(duration)
        return None if distribution is None else quantile(distribution.numbers, share)


def chart_points(period: ChartPeriod, start: datetime, now: datetime) -> list[ChartPoint]:
    """Return the empty points from the one that contains ``start`` to the one that contains
    ``now``.

    The first point has the minutes after ``start``, and the last one those that have begun, so that
    their rates are not too low.
    """
    step = series.MINUTE * period.step
    first, end = period.start(now), series.minute_of(now) + series.MINUTE
    starts = (first + step * number for number in range(period.points))
    return [
        ChartPoint(at, (min(at + step, end) - max(at, start)) // series.MINUTE)
        for at in starts
        if at + step > start
    ]


def quantile(numbers: Sequence[int], share: float) -> float | None:
    """Return the quantile of a histogram with the bounds BUCKETS; None if it is empty.

    It is interpolated within its bucket, as ``histogram_quantile`` of Prometheus does. In the last
    bucket, which has no upper bound, it is the lower bound.
    """
    rank, below, lower = sum(numbers) * share, 0, 0.0
    for bound, number in zip(series.BUCKETS, numbers, strict=False):
        if number and below + number >= rank:
            return lower + (bound - lower) * (rank - below) / number
        below, lower = below + number, bound
    return lower if sum(numbers) else None


def endings(tenants: Collection[int] | None) -> Any:
    """Return a queryset of the counted endings of these tenants, None for all."""
    rows = counts().filter(kind__in=ENDING_KINDS).exclude(status__in=NOT_ENDINGS).order_by()
    return rows if tenants is None else rows.filter(tenant_id__in=sorted(tenants))


def read_points(rows: Any, period: ChartPeriod, now: datetime) -> tuple[list[ChartPoint], bool]:
    """Return the sums of these endings in the period that ends ``now``, and whether a period with
    more than ROWS_MAX rows was shortened at its beginning. Two statements.
    """
    start = period.start(now)
    rows = rows.filter(
        span__in=(series.Span.MINUTE, series.Span.QUARTER), minute__gte=start, minute__lte=now
    ).order_by("-minute")
    first_left_out = list(rows.values_list("minute", flat=True)[ROWS_MAX : ROWS_MAX + 1])
    if first_left_out:
        # Of a quarter of an hour that is cut, the minutes at its end are left out too.
        start = series.minute_of(first_left_out[0]) + series.MINUTE
    points = chart_points(period, start, now)
    by_start = {point.start: point for point in points}
    counted = rows.filter(minute__gte=start).values_list("minute", "status", "number", "durations")
    for minute, status, number, durations in counted.iterator(_CHUNK):
        at = series.minute_of(minute)
        point = by_start.get(at - series.MINUTE * (at.minute % period.step))
        if point is not None:
            point.add(status, number, series.CountedDurations.stored(number, durations).durations)
    return points, bool(first_left_out)


# Charts of values over time as SVG: stacked bars, and lines on a logarithmic scale of seconds.
#
# As other diagrams, a chart has its own light background. Its title and description are elements of
# the document, and each point has a tooltip with its values. It contains no style and no script.


WIDTH, HEIGHT = 960, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 14, 30
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_SIZE = 12
PANEL, _GRID, _AXIS, _QUIET = "#ffffff", "#e2e8f0", "#64748b", "#475569"
_SECONDS = (
    (0.001, "1 ms"),
    (0.01, "10 ms"),
    (0.1, "100 ms"),
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3_600.0, "1 h"),
)
STATUS_COLOURS = {
    Status.SUCCESS.value: "#15803d",
    LogStatus.RETRY.value: "#d97706",
    Status.FAILED.value: "#b91c1c",
    LogStatus.LOST.value: "#0f172a",
    Status.CANCELLED.value: "#7e22ce",
    Status.SKIPPED.value: "#94a3b8",
    Status.EXPIRED.value: "#db2777",
}
"""The statuses of endings in the order of a stack, from below, with their colours."""
OTHER_COLOUR = _AXIS
LINE_COLOURS = ("#1d4ed8", "#d97706")


def element(name: str, *children: str, **attributes: str | float | None) -> SafeString:
    """Return an element. An underscore in an attribute's name represents a hyphen."""
    written = flatatt({key.replace("_", "-"): value for key, value in attributes.items()})
    inside = format_html_join("", "{}", ((child,) for child in children))
    return format_html("<{}{}>{}</{}>", name, written, inside, name)


def text(
    x: float, y: float, words: str, size: float, colour: str, **attributes: str | float
) -> SafeString:
    """Return one line of text; ``y`` is its baseline."""
    return element("text", words, x=x, y=y, font_size=size, fill=colour, **attributes)


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A named row of values, one for each point; None for a point without one."""

    name: str
    colour: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """What all charts of a page share. ``key`` makes the ids of the elements unique on the page.

    ``moments`` are the texts of the points for tooltips, ``ticks`` the labelled points.
    """

    key: str
    title: str
    description: str
    moments: Sequence[str]
    ticks: Sequence[tuple[int, str]]

    def left_of(self, index: float) -> float:
        """Return the left edge of a point."""
        return _LEFT + _PLOT_WIDTH * index / max(len(self.moments), 1)


def stacked_bars(frame: ChartFrame, rows: Sequence[ChartSeries]) -> SafeString:
    """Return a bar for each point, in which the values of all rows are stacked."""
    sums = [sum(row.values[index] or 0.0 for row in rows) for index in range(len(frame.moments))]
    # A scale from 0, and about four marks with round values.
    highest = max(sums, default=0.0)
    top, marks = 1.0, [(0.0, "0"), (1.0, "1")]
    if highest > 0:
        rough = highest / 4
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
        count = math.ceil(highest / step - 1e-9)
        top = step * count
        marks = [(step * n, f"{round(step * n, 9):,g}") for n in range(count + 1)]

    def height(value: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - value / top)

    elements = [*_grid(marks, height), *_axis(frame)]
    for index, total in enumerate(sums):
        if not total:
            continue
        left, width = frame.left_of(index), _PLOT_WIDTH / len(frame.moments)
        below, rectangles = 0.0, list[SafeString]()
        for row in rows:
            value = row.values[index] or 0.0
            if value:
                y, bottom = height(below + value), height(below)
                rectangles.append(
                    element(
                        "rect",
                        x=round(left + width * 0.1, 2),
                        y=round(y, 2),
                        width=round(width * 0.8, 2),
                        height=round(bottom - y, 2),
                        fill=row.colour,
                    )
                )
                below += value
        said = ", ".join(f"{row.name} {row.values[index] or 0:.3g}" for row in rows)
        tooltip = element("title", f"{frame.moments[index]}: {said}")
        elements.append(element("g", tooltip, *rectangles))
    return _document(frame, elements)


def lines(frame: ChartFrame, rows: Sequence[ChartSeries]) -> SafeString:
    """Return a line for each row of durations in seconds, with gaps where there is no value."""
    values = [value for row in rows for value in row.values if value is not None]
    # From the mark below to the mark above these durations, at least two marks apart.
    bounds = [bound for bound, _label in _SECONDS]
    lowest, highest = (min(values), max(values)) if values else (0.01, 1.0)
    first = max((n for n, bound in enumerate(bounds) if bound <= lowest), default=0)
    last = min((n for n, bound in enumerate(bounds) if bound >= highest), default=len(bounds) - 1)
    if last - first < 2:
        last = min(first + 2, len(bounds) - 1)
        first = last - 2
    low, high = bounds[first], bounds[last]

    def height(value: float) -> float:
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return _TOP + _PLOT_HEIGHT * (1 - share)

    marks = [(value, label) for value, label in _SECONDS if low <= value <= high]
    elements = [*_grid(marks, height), *_axis(frame)]
    elements += [_line(frame, row, height) for row in rows]
    for index, moment in enumerate(frame.moments):
        # An invisible bar with a tooltip for each point that has a value.
        if any(row.values[index] is not None for row in rows):
            said = ", ".join(f"{row.name} {seconds(row.values[index])}" for row in rows)
            elements.append(
                element(
                    "rect",
                    element("title", f"{moment}: {said}"),
                    x=round(frame.left_of(index), 2),
                    y=_TOP,
                    width=round(_PLOT_WIDTH / len(frame.moments), 2),
                    height=_PLOT_HEIGHT,
                    fill_opacity=0,
                )
            )
    return _document(frame, elements)


def seconds(value: float | None) -> str:
    """Return a duration as a short text."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1_000:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def swatch(colour: str) -> SafeString:
    """Return a small square for a legend outside the chart."""
    square = element("rect", width=12, height=12, rx=2, fill=colour)
    return element("svg", square, width=12, height=12, aria_hidden="true")


def _document(frame: ChartFrame, elements: Sequence[SafeString]) -> SafeString:
    title, description = f"{frame.key}-title", f"{frame.key}-desc"
    return element(
        "svg",
        element("title", frame.title, id=title),
        element("desc", frame.description, id=description),
        element("rect", width=WIDTH, height=HEIGHT, rx=4, fill=PANEL),
        *elements,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=title,
        aria_describedby=description,
        font_family="sans-serif",
    )


def _grid(
    marks: Sequence[tuple[float, str]], height: Callable[[float], float]
) -> Iterator[SafeString]:
    for value, label in marks:
        y = round(height(value), 2)
        yield element("path", d=f"M{_LEFT} {y}H{WIDTH - _RIGHT}", stroke=_GRID)
        yield text(_LEFT - 8, y + 4, label, _SIZE, _QUIET, text_anchor="end")


def _axis(frame: ChartFrame) -> Iterator[SafeString]:
    bottom = _TOP + _PLOT_HEIGHT
    yield element("path", d=f"M{_LEFT} {bottom}H{WIDTH - _RIGHT}", stroke=_AXIS)
    for index, label in frame.ticks:
        x = round(frame.left_of(index), 2)
        yield element("path", d=f"M{x} {bottom}V{bottom + 5}", stroke=_AXIS)
        yield text(x, bottom + 20, label, _SIZE, _QUIET, text_anchor="middle")


def _line(frame: ChartFrame, row: ChartSeries, height: Callable[[float], float]) -> SafeString:
    """Return the line with a dot at each value, so that a value between two gaps is visible."""
    path, dots, pen = list[str](), list[SafeString](), "M"
    for index, value in enumerate(row.values):
        if value is None:
            pen = "M"
            continue
        x, y = round(frame.left_of(index + 0.5), 2), round(height(value), 2)
        path.append(f"{pen}{x} {y}")
        dots.append(element("circle", cx=x, cy=y, r=2, fill=row.colour))
        pen = "L"
    drawn = element("path", d="".join(path), fill="none", stroke=row.colour, stroke_width=1.6)
    return element("g", *([drawn] if path else []), *dots)


# The page.


_TITLES = {"1h": _("1 hour"), "24h": _("24 hours"), "7d": _("7 days")}
_TICK_MINUTES = {"1h": 10, "24h": 180, "7d": 1_440}
_QUANTILES = (("p50", 0.5), ("p95", 0.95))
_DURATIONS = (
    (series.Duration.RUN, _("Run time of attempts")),
    (series.Duration.SCHEDULER_WAIT, _("Wait for a scheduler: from due to claimed")),
    (series.Duration.BROKER_WAIT, _("Wait for a worker: from claimed to started")),
)


def _frame(key: str, title: str, points: Sequence[ChartPoint], period: ChartPeriod) -> ChartFrame:
    layout = "%H:%M" if period.name == "1h" else "%Y-%m-%d %H:%M"
    starts = [timezone.localtime(point.start) for point in points]
    moments = [f"{start:{layout}}" for start in starts]
    description = gettext(
        "%(points)d points of %(minutes)d min from %(first)s to %(last)s. The table below contains"
        " the values."
    ) % {
        "points": len(moments),
        "minutes": period.step,
        "first": moments[0],
        "last": moments[-1],
    }
    # At round times of the site's zone.
    each = _TICK_MINUTES[period.name]
    ticks = [
        (index, f"{start:%m-%d}" if each == 1_440 else f"{start:%H:%M}")
        for index, start in enumerate(starts)
        if (start.hour * 60 + start.minute) % each == 0
    ]
    return ChartFrame(f"durable-chart-{key}", title, description, moments, ticks)


def _charts(points: Sequence[ChartPoint], period: ChartPeriod) -> Iterator[dict[str, Any]]:
    """Yield the charts as the page shows them: the endings per minute with their totals of the
    period, and the quantiles of each duration that was counted.
    """
    totals = Counter[str]()
    for point in points:
        totals.update(point.numbers)
    if not totals:
        return
    known = [status for status in STATUS_COLOURS if totals[status]]
    title = gettext("Endings per minute")
    frame = _frame("endings", title, points, period)
    rows = [
        ChartSeries(
            status, STATUS_COLOURS.get(status, OTHER_COLOUR), [p.rate(status) for p in points]
        )
        for status in [*known, *sorted(set(totals) - set(known))]
    ]
    yield {
        "title": title,
        "svg": stacked_bars(frame, rows),
        "legend": [(swatch(row.colour), f"{row.name} {totals[row.name]:,}") for row in rows],
        "columns": [row.name for row in rows],
        "rows": [
            (moment, [f"{row.values[index] or 0:,.3g}" for row in rows])
            for index, moment in enumerate(frame.moments)
        ],
    }
    for duration, words in _DURATIONS:
        rows = [
            ChartSeries(name, colour, [point.quantile(duration, share) for point in points])
            for (name, share), colour in zip(_QUANTILES, LINE_COLOURS, strict=True)
        ]
        if all(value is None for value in rows[0].values):
            continue
        frame = _frame(duration.value.replace("_", "-"), str(words), points, period)
        yield {
            "title": frame.title,
            "svg": lines(frame, rows),
            "legend": [(swatch(row.colour), row.name) for row in rows],
            "columns": [row.name for row in rows],
            "rows": [
                (moment, [seconds(row.values[index]) for row in rows])
                for index, moment in enumerate(frame.moments)
            ],
        }


def _facts(request: HttpRequest, now: datetime) -> dict[str, Any]:
    # An unknown period is replaced by the first one.
    period = PERIODS.get(request.GET.get("period", ""), next(iter(PERIODS.values())))
    chosen = {column: request.GET.get(column, "") for column in ("queue", "name")}
    rows = endings(filters.tenants_of(request))
    pairs = list(rows.filter(span=series.Span.TOTAL).values_list(*chosen))
    queues, names = ({pair[place] for pair in pairs} for place in (0, 1))
    for (column, value), counted in zip(chosen.items(), (queues, names), strict=True):
        if value:
            rows = rows.filter(**{column: value}) if value in counted else rows.none()
    points, is_cut = read_points(rows, period, now)
    periods = []
    for name in PERIODS:
        parameters = {"period": name, **{key: value for key, value in chosen.items() if value}}
        periods.append(
            {
                "title": _TITLES[name],
                "url": f"?{urlencode(parameters)}",
                "is_current": name == period.name,
            }
        )
    # Why the charts are empty or shorter than the period.
    remarks = []
    if filters.is_limited(request) and not conf.settings().METRICS_TENANTS:
        remarks.append(
            gettext(
                "You see only the tenants assigned to you, and METRICS_TENANTS is not set, so"
                " nothing is counted for each tenant."
            )
        )
    kept = (now - conf.kept_from("METRICS", now)).total_seconds()
    if period.minutes * 60 > kept:
        remarks.append(gettext("Counts are kept for %s (METRICS in RETENTION).") % ago(kept))
    if is_cut:
        text = gettext(
            "The charts begin at %s, because the period has too many counts. Choose a queue or"
            " a task to see all of it."
        )
        remarks.append(text % f"{timezone.localtime(points[0].start):%Y-%m-%d %H:%M}")
    return {
        "query": {"period": period, **chosen},
        "periods": periods,
        "queue_choices": sorted({*queues, chosen["queue"]} - {""}),
        "name_choices": sorted({*names, chosen["name"]} - {""}),
        "remarks": remarks,
        "charts": list(_charts(points, period)),
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
