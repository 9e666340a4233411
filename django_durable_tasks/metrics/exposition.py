"""Writes the metrics in the text formats of Prometheus and OpenMetrics.

The values are read from the database, so every process answers the same, and a killed process takes
no count with it. They are read at most once in FRESH seconds per process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from django_durable_tasks import conf, process_state
from django_durable_tasks.engine.cluster.gauges import read_gauges
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.metrics.totals import read_totals
from django_durable_tasks.metrics.families import families

FRESH = 5.0
"""Seconds for which values that were read are served again."""


class DurableTasksCollector(Collector):
    """The metrics of the installation. Register it in another registry to add them to its metrics.

    Raises django.db.Error if the database does not answer.
    """

    def collect(self) -> Iterable[Metric]:
        """Read the values and return the metrics."""
        with dedicated_connection():
            totals, gauges = read_totals(), read_gauges()
        return list(families(totals, gauges, tenants=conf.settings().METRICS_TENANTS))

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that a registration does not read the database."""
        return []


class _KnownMetrics(Collector):
    """Metrics that were collected before."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
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
