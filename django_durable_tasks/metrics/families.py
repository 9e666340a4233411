"""The metrics with their names, texts and labels, from totals and gauges.

docs/how-to/metrics.md lists them. The dashboard and the alert rules use these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from django_durable_tasks.engine.cluster.gauges import Gauges
from django_durable_tasks.rules.metrics.counts import (
    ALL_TENANTS,
    BUCKETS,
    CountedDurations,
    Distribution,
    Duration,
    MetricKind,
    SeriesKey,
)
from django_durable_tasks.rules.recurring.policies import FireOutcome
from django_durable_tasks.rules.states import LogStatus

PREFIX = "durable_tasks"
Totals = Sequence[tuple[SeriesKey, CountedDurations]]
_ACCEPTED = frozenset(
    {
        LogStatus.SUCCESS,
        LogStatus.FAILED,
        LogStatus.RETRY,
        LogStatus.LOST,
        LogStatus.CANCELLED,
    }
)
_FIRED = frozenset({FireOutcome.DISPATCHED, FireOutcome.ROLLED, FireOutcome.MANUAL})


class TotalMetric(NamedTuple):
    """A counter of tasks: its name, text, the series that it sums, and whether it has a status."""

    name: str
    text: str
    kind: MetricKind
    statuses: frozenset[str] | None = None
    has_status: bool = False

    def sums(self, key: SeriesKey) -> bool:
        """Return whether the series is part of this counter."""
        return key.kind == self.kind and (self.statuses is None or key.status in self.statuses)


TOTALS = (
    TotalMetric("scheduled", "Created tasks.", MetricKind.CREATED),
    TotalMetric("executed", "Ended attempts.", MetricKind.ATTEMPT, _ACCEPTED, has_status=True),
    TotalMetric(
        "failed", "Attempts that failed for good.", MetricKind.ATTEMPT, frozenset({"FAILED"})
    ),
    TotalMetric(
        "retried",
        "Attempts that failed and are followed by another one.",
        MetricKind.ATTEMPT,
        frozenset({"RETRY"}),
    ),
    TotalMetric(
        "refused",
        "Endings of runs that no longer owned their task, and duplicate messages.",
        MetricKind.ATTEMPT,
        frozenset({"FENCED", "DUPLICATE"}),
        has_status=True,
    ),
    TotalMetric(
        "skipped", "Tasks that ended without an attempt.", MetricKind.ENDED, has_status=True
    ),
)
HISTOGRAMS = (
    ("run_seconds", "Duration of an attempt.", Duration.RUN),
    (
        "scheduler_wait_seconds",
        "Time from when a task was due until it was claimed.",
        Duration.SCHEDULER_WAIT,
    ),
    (
        "broker_wait_seconds",
        "Time from when a task was claimed until it started.",
        Duration.BROKER_WAIT,
    ),
)


def families(totals: Totals, gauges: Gauges, *, tenants: bool) -> Iterator[Metric]:
    """Yield all metrics; ``tenants``: with a label for the tenant."""
    for total in TOTALS:
        yield _counter(total, totals, tenants=tenants)
    yield _misfires(totals)
    for name, text, duration in HISTOGRAMS:
        yield _histogram(name, text, duration, totals, tenants=tenants)
    yield from _queue_gauges(gauges)
    yield from _cluster_gauges(gauges)


def _labels(*names: str, tenants: bool) -> list[str]:
    return ["queue", "task", *names, *(["tenant"] if tenants else [])]


def _label_values(key: SeriesKey, *more: str, tenants: bool) -> list[str]:
    tenant = "" if key.tenant_id == ALL_TENANTS else str(key.tenant_id)
    return [key.queue, key.name, *more, *([tenant] if tenants else [])]


def _grouped(
    rows: Iterable[tuple[SeriesKey, CountedDurations]], labels_of: Callable[[SeriesKey], list[str]]
) -> dict[tuple[str, ...], CountedDurations]:
    """Return the sums by labels; series of several tenants or statuses may have the same."""
    found: dict[tuple[str, ...], CountedDurations] = {}
    for key, counted in rows:
        found.setdefault(tuple(labels_of(key)), CountedDurations()).add(counted)
    return dict(sorted(found.items()))


def _counter(total: TotalMetric, totals: Totals, *, tenants: bool) -> Metric:
    status = ("status",) if total.has_status else ()
    family = CounterMetricFamily(
        f"{PREFIX}_{total.name}", total.text, labels=_labels(*status, tenants=tenants)
    )
    rows = ((key, counted) for key, counted in totals if total.sums(key))

    def labels_of(key: SeriesKey) -> list[str]:
        return _label_values(key, *([key.status] if status else []), tenants=tenants)

    for labels, counted in _grouped(rows, labels_of).items():
        family.add_metric(list(labels), counted.number)
    return family


def _misfires(totals: Totals) -> Metric:
    family = CounterMetricFamily(
        f"{PREFIX}_misfires", "Fire times of recurring tasks that did not run.", labels=["reason"]
    )
    rows = (
        (key, counted)
        for key, counted in totals
        if key.kind == MetricKind.OCCURRENCE and key.status not in _FIRED
    )
    for labels, counted in _grouped(rows, lambda key: [key.status]).items():
        family.add_metric(list(labels), counted.number)
    return family


def _histogram(
    name: str, text: str, duration: Duration, totals: Totals, *, tenants: bool
) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}_{name}", text, labels=_labels(tenants=tenants))
    rows = ((key, counted) for key, counted in totals if duration in counted.durations)
    grouped = _grouped(rows, lambda key: _label_values(key, tenants=tenants))
    for labels, counted in grouped.items():
        one = counted.durations[duration]
        family.add_metric(list(labels), _buckets(one), one.total)
    return family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    bounds = [*(str(float(bound)) for bound in BUCKETS), "+Inf"]
    return list(zip(bounds, accumulate(distribution.numbers), strict=True))


def _gauge(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=list(labels))
    for values, number in rows:
        family.add_metric(list(values), number)
    return family


def _queue_gauges(gauges: Gauges) -> Iterator[Metric]:
    queues = sorted(gauges.queues.items())
    depths = [
        ((queue, status), number)
        for queue, one in queues
        for status, number in (
            ("PENDING", one.pending),
            ("QUEUED", one.queued),
            ("RUNNING", one.running),
        )
    ]
    text = "Open tasks of a queue. PENDING ones are counted up to 10,000."
    yield _gauge("queue_depth", text, ["queue", "status"], depths)
    yield _gauge(
        "due",
        "PENDING tasks that are due, up to 10,000.",
        ["queue"],
        [((queue,), one.due) for queue, one in queues],
    )
    yield _gauge(
        "oldest_due_age_seconds",
        "How long the oldest PENDING task of a queue has been due.",
        ["queue"],
        [((queue,), one.oldest_due_age) for queue, one in queues],
    )


def _cluster_gauges(gauges: Gauges) -> Iterator[Metric]:
    yield _gauge("leader", "1 if a scheduler is the leader.", [], [((), float(gauges.is_led))])
    yield _gauge("leader_term", "The term of the leader.", [], [((), gauges.term)])
    yield _gauge(
        "nodes", "Schedulers and workers.", ["kind", "state"], sorted(gauges.nodes.items())
    )
    yield _gauge(
        "clock_skew_seconds",
        "The largest difference of a node's clock from the database's.",
        ["kind"],
        sorted(((kind,), skew) for kind, skew in gauges.skews.items()),
    )
    yield _gauge(
        "clock_step_seconds",
        "By how many seconds the database's clock was set last; 0 if not in the last hour.",
        [],
        [((), gauges.clock_step)],
    )
    limits = gauges.limits.items()
    yield _gauge(
        "limit_used",
        "Weight of QUEUED and RUNNING tasks of a concurrency limit.",
        ["scope"],
        [((scope,), used) for scope, (used, _) in limits],
    )
    yield _gauge(
        "limit_max",
        "Concurrency limit.",
        ["scope"],
        [((scope,), most) for scope, (_, most) in limits],
    )
    text = "Open dead letters, up to 10,000."
    yield _gauge("open_dead_letters", text, [], [((), gauges.dead_letters)])
    text = "Ids of the attempt log that are not counted in the totals yet."
    yield _gauge("uncounted_attempts", text, [], [((), gauges.uncounted_ids)])
