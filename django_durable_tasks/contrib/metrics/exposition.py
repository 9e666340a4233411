"""The metrics: gauges, families, the text formats of Prometheus and OpenMetrics, and a server for
schedulers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any, NamedTuple

from django.db import Error
from prometheus_client import core
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from django_durable_tasks import conf, process_state
from django_durable_tasks.choices import FireOutcome, LogStatus
from django_durable_tasks.cluster import queues
from django_durable_tasks.cluster.status import is_silent, recent_clock_step
from django_durable_tasks.contrib.metrics import series
from django_durable_tasks.contrib.metrics.counts import read_totals, settled_until
from django_durable_tasks.limits import config, waitlist
from django_durable_tasks.limits.scopes import EACH_TENANT
from django_durable_tasks.models import Node, SchedulerLease
from django_durable_tasks.models.cluster import lease_name
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import reason_of
from django_durable_tasks.store.tables import database
from django_durable_tasks.tasks import operator_actions

# The metrics with their names, texts and labels, from totals and gauges.
#
# docs/how-to/metrics.md lists them. The dashboard and the alert rules use these names.


PREFIX = "durable_tasks"
Totals = Sequence[tuple[series.SeriesKey, series.CountedDurations]]
_ACCEPTED = frozenset(
    (LogStatus.SUCCESS, LogStatus.FAILED, LogStatus.RETRY, LogStatus.LOST, LogStatus.CANCELLED)
)
_NOT_FIRED = frozenset(FireOutcome) - {
    FireOutcome.DISPATCHED,
    FireOutcome.ROLLED,
    FireOutcome.MANUAL,
}
# Labels of series, and the tenant if each is counted, with the fields of the series.
_TASK = {"queue": "queue", "task": "name"}
_TASK_AND_STATUS = {**_TASK, "status": "status"}
_TENANT = {"tenant": "tenant_id"}


class TotalMetric(NamedTuple):
    """A counter: its name, text, the series that it sums, and its labels with their fields."""

    name: str
    text: str
    kind: series.MetricKind
    statuses: Collection[str] | None = None
    labels: Mapping[str, str] = _TASK


TOTALS = (
    TotalMetric("scheduled", "Created tasks.", series.MetricKind.CREATED),
    TotalMetric(
        "executed", "Ended attempts.", series.MetricKind.ATTEMPT, _ACCEPTED, _TASK_AND_STATUS
    ),
    TotalMetric("failed", "Attempts that failed for good.", series.MetricKind.ATTEMPT, {"FAILED"}),
    TotalMetric(
        "retried",
        "Attempts that failed and are followed by another one.",
        series.MetricKind.ATTEMPT,
        {"RETRY"},
    ),
    TotalMetric(
        "refused",
        "Endings of runs that no longer owned their task, and duplicate messages.",
        series.MetricKind.ATTEMPT,
        {"FENCED", "DUPLICATE"},
        _TASK_AND_STATUS,
    ),
    TotalMetric(
        "skipped",
        "Tasks that ended without an attempt.",
        series.MetricKind.ENDED,
        labels=_TASK_AND_STATUS,
    ),
    TotalMetric(
        "misfires",
        "Fire times of recurring tasks that did not run.",
        series.MetricKind.OCCURRENCE,
        _NOT_FIRED,
        {"reason": "status"},
    ),
)
HISTOGRAMS = (
    ("run_seconds", "Duration of an attempt.", series.Duration.RUN),
    (
        "scheduler_wait_seconds",
        "Time from when a task was due until it was claimed.",
        series.Duration.SCHEDULER_WAIT,
    ),
    (
        "broker_wait_seconds",
        "Time from when a task was claimed until it started.",
        series.Duration.BROKER_WAIT,
    ),
)


def families(totals: Totals, gauges: Gauges, *, tenants: bool) -> Iterator[core.Metric]:
    """Yield all metrics; ``tenants``: those of tasks with a label for the tenant."""
    for total in TOTALS:
        rows = (
            (key, counted)
            for key, counted in totals
            if key.kind == total.kind and (total.statuses is None or key.status in total.statuses)
        )
        fields = total.labels
        if tenants and "task" in fields:
            fields = {**fields, **_TENANT}
        family = core.CounterMetricFamily(f"{PREFIX}_{total.name}", total.text, labels=list(fields))
        for labels, counted in _grouped(rows, fields).items():
            family.add_metric(list(labels), counted.number)
        yield family
    fields = {**_TASK, **_TENANT} if tenants else _TASK
    bounds = [*(str(float(bound)) for bound in series.BUCKETS), "+Inf"]
    for name, text, duration in HISTOGRAMS:
        rows = ((key, counted) for key, counted in totals if duration in counted.durations)
        histogram = core.HistogramMetricFamily(f"{PREFIX}_{name}", text, labels=list(fields))
        for labels, counted in _grouped(rows, fields).items():
            distribution = counted.durations[duration]
            buckets = list(zip(bounds, accumulate(distribution.numbers), strict=True))
            histogram.add_metric(list(labels), buckets, distribution.total)
        yield histogram
    queues = sorted(gauges.queues.items())
    depths = [
        ((queue, status), number)
        for queue, gauge in queues
        for status, number in (
            ("PENDING", gauge.pending),
            ("QUEUED", gauge.queued),
            ("RUNNING", gauge.running),
        )
    ]
    description = "Open tasks of a queue. PENDING ones are counted up to 10,000."
    yield _gauge("queue_depth", description, ["queue", "status"], depths)
    yield _gauge(
        "due",
        "PENDING tasks that are due, up to 10,000.",
        ["queue"],
        [((queue,), gauge.due) for queue, gauge in queues],
    )
    yield _gauge(
        "oldest_due_age_seconds",
        "How long the oldest PENDING task of a queue has been due.",
        ["queue"],
        [((queue,), gauge.oldest_due_age) for queue, gauge in queues],
    )
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
    description = "Open dead letters, up to 10,000."
    yield _gauge("open_dead_letters", description, [], [((), gauges.dead_letters)])
    description = (
        "Age of the newest minute that is counted for the last time, about an hour after it."
    )
    yield _gauge("settled_age_seconds", description, [], [((), gauges.settled_age)])


def _grouped(
    rows: Iterable[tuple[series.SeriesKey, series.CountedDurations]], labels: Mapping[str, str]
) -> dict[tuple[str, ...], series.CountedDurations]:
    """Return the sums by labels; series of several tenants or statuses may have the same."""
    groups: dict[tuple[str, ...], series.CountedDurations] = {}
    for key, counted in rows:
        values = key._asdict()
        if key.tenant_id == series.ALL_TENANTS:
            values["tenant_id"] = ""
        group = tuple(str(values[field]) for field in labels.values())
        groups.setdefault(group, series.CountedDurations()).add(counted)
    return dict(sorted(groups.items()))


def _gauge(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> core.Metric:
    family = core.GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=list(labels))
    for values, number in rows:
        family.add_metric(list(values), number)
    return family


# The values are read from the database, so every process answers the same, and a killed process
# takes no count with it. They are read at most once in FRESH seconds per process.


FRESH = 5.0
"""Seconds for which values that were read are served again."""


class DurableTasksCollector(Collector):
    """The metrics of the installation. Register it in another registry to add them to its metrics.

    Raises django.db.Error if the database does not answer.
    """

    def collect(self) -> Iterable[core.Metric]:
        """Read the values and return the metrics."""
        with dedicated_connection():
            totals, gauges = read_totals(), read_gauges()
        return list(families(totals, gauges, tenants=conf.settings().METRICS_TENANTS))

    def describe(self) -> Iterable[core.Metric]:
        """Return nothing, so that a registration does not read the database."""
        return []


class _KnownMetrics(Collector):
    """Metrics that were collected before."""

    def __init__(self, metrics: Iterable[core.Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[core.Metric]:
        return self._metrics


class RecentMetrics:
    """The metrics that this process has read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at, self._registry = float("-inf"), CollectorRegistry()

    def registry(self) -> CollectorRegistry:
        """Return a registry with metrics that are at most FRESH seconds old.

        Requests that arrive while they are read wait for the same values.
        """
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH:
                registry = CollectorRegistry()
                registry.register(_KnownMetrics(DurableTasksCollector().collect()))
                self._registry, self._read_at = registry, time.monotonic()
            return self._registry


def written(accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type, in the format that ``Accept`` asks for."""
    encode, content_type = choose_encoder(accept)
    return encode(process_state.of(RecentMetrics).registry()), content_type


# Serves the metrics of a scheduler over HTTP, for ``run_scheduler --metrics-port``.


logger = logging.getLogger("django_durable_tasks.metrics")
PATH = "/metrics"
_REQUEST_TIMEOUT = 10.0


class MetricsRequestHandler(BaseHTTPRequestHandler):
    """Answers GET /metrics, and 404 for every other address."""

    timeout = _REQUEST_TIMEOUT
    server_version = "django-durable-tasks"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the metrics, or with 503 if the database does not answer."""
        if self.path.partition("?")[0] != PATH:
            self._answer(404, b"Only /metrics exists.\n", "text/plain")
            return
        try:
            body, content_type = written(self.headers.get("Accept", ""))
        except Error as error:
            logger.warning("The metrics were not read: %s", reason_of(error))
            self._answer(503, b"The database is unavailable.\n", "text/plain")
            return
        self._answer(200, body, content_type)

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write the access log at level DEBUG."""
        logger.debug(format, *args)


class MetricsServer(ThreadingHTTPServer):
    """An HTTP server in a thread of its own; raises OSError if the address cannot be bound."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), MetricsRequestHandler)
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and close the socket."""
        self.shutdown()
        self.server_close()


# Reads the values of the metrics that are not totals: queues, leader, nodes, limits, dead
# letters.
#
# At most nine statements for 500 queues. None reads an ended task, and backlogs are counted up to
# ``queues.COUNTED``.


class QueueGauge(NamedTuple):
    """The open tasks of a queue, and the age in seconds of the oldest one that is due."""

    pending: int = 0
    due: int = 0
    oldest_due_age: float = 0.0
    queued: int = 0
    running: int = 0

    def plus(self, other: QueueGauge) -> QueueGauge:
        """Return both queues as one."""
        return QueueGauge(
            self.pending + other.pending,
            self.due + other.due,
            max(self.oldest_due_age, other.oldest_due_age),
            self.queued + other.queued,
            self.running + other.running,
        )


def busiest_queues(queues: Mapping[str, QueueGauge], most: int) -> dict[str, QueueGauge]:
    """Return the ``most`` queues with the most open tasks by name, the others as ``other``."""

    def size(name: str) -> tuple[int, str]:
        queue = queues[name]
        return -(queue.pending + queue.queued + queue.running), name

    names = sorted(queues, key=size)
    busiest = {name: queues[name] for name in sorted(names[:most])}
    for name in names[most:]:
        busiest[series.OTHER] = busiest.get(series.OTHER, QueueGauge()).plus(queues[name])
    return busiest


def fullest_limits(limits: Mapping[str, tuple[int, int]], most: int) -> dict[str, tuple[int, int]]:
    """Return the ``most`` limits of which the largest part is used, by scope."""

    def free(scope: str) -> tuple[float, str]:
        used, limit = limits[scope]
        return -(used / limit if limit else 0.0), scope

    return {scope: limits[scope] for scope in sorted(sorted(limits, key=free)[:most])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The state of the installation at one moment.

    ``queues`` and ``limits`` (usage and maximum by scope) have at most SERIES_MAX names.
    ``nodes``: the number of nodes by kind and state. ``skews``: by kind, the largest difference
    between the clock of a node and the database's, in seconds. ``clock_step``: by how many seconds
    the database's clock was set in the last hour. ``settled_age``: the age in seconds of the
    newest minute that is counted for the last time.
    """

    queues: Mapping[str, QueueGauge]
    term: int
    is_led: bool
    nodes: Mapping[tuple[str, str], int]
    skews: Mapping[str, float]
    clock_step: float
    limits: Mapping[str, tuple[int, int]]
    dead_letters: int
    settled_age: float


def read_gauges() -> Gauges:
    """Read all values."""
    leases = SchedulerLease.objects.using(database()).filter(name=lease_name())
    lease = leases.values_list(DatabaseNow(), "term", "expires_at").first()
    now, term, expires_at = lease or (database_now(), 0, None)
    settled = settled_until()
    columns = ("kind", "skew", "last_seen_at", "draining", "clock_step", "clock_step_at")
    alive = list(Node.objects.using(database()).alive().only(*columns))
    skews: dict[str, float] = {}
    for node in alive:
        if node.skew is not None and abs(node.skew) >= abs(skews.get(node.kind, 0.0)):
            skews[node.kind] = node.skew
    noticed = recent_clock_step(alive, now)
    used = waitlist.count_usage()
    limit_config = config.read()
    open_tasks = {
        queue: QueueGauge(pending, due, max(0.0, (now - head).total_seconds()) if due else 0.0)
        for queue, pending, due, head in queues.waiting(now)
    }
    for queue, tenants in list(used.of_tenants.items()):
        queued = used.window(queue)
        published = QueueGauge(queued=queued, running=tenants.total() - queued)
        open_tasks[queue] = open_tasks.get(queue, QueueGauge()).plus(published)
    return Gauges(
        queues=busiest_queues(open_tasks, series.SERIES_MAX),
        term=term,
        is_led=expires_at is not None and expires_at > now,
        nodes=Counter((node.kind, _state(node, now)) for node in alive),
        skews=skews,
        clock_step=noticed.clock_step or 0.0 if noticed else 0.0,
        limits=fullest_limits(
            {
                scope: (used.under_way[scope], allowed.places)
                for scope, allowed in sorted(limit_config.scopes.items())
                if allowed.places is not None and scope != EACH_TENANT
            },
            series.SERIES_MAX,
        ),
        dead_letters=operator_actions.open_letters_up_to(queues.COUNTED),
        settled_age=(now - settled).total_seconds() if settled else 0.0,
    )


def _state(node: Node, now: datetime) -> str:
    if is_silent(node, now):
        return "silent"
    return "draining" if node.draining else "alive"
