"""The settings of metrics and traces, which are part of ``Settings``."""

from __future__ import annotations

from dataclasses import dataclass

from django_durable_tasks.conf_checks import InvalidSetting
from django_durable_tasks.conf_fields import count, duration, value


@dataclass(frozen=True, kw_only=True)
class MonitoringOptions:
    """The settings of metrics and traces; durations in seconds."""

    METRICS: bool = value(
        False,
        "Count attempts, created tasks and fire times per minute for the metrics, and answer"
        " requests for them. Set it for all processes.",
    )
    METRICS_TENANTS: bool = value(
        False, "Count for each tenant, and add the label `tenant` to the metrics of tasks."
    )
    METRICS_SERIES_MAX: int = count(
        1_000,
        "The most combinations of queue, task, status and tenant that are counted separately. What"
        " comes later is counted under the name `other`.",
    )
    METRICS_RETENTION: float = duration(
        172_800, "How long the counts per minute are kept; two days. Totals are kept indefinitely."
    )
    TRACES: bool = value(
        False,
        "Create spans of OpenTelemetry for the creation and the attempts of tasks; needs the extra"
        " [otel].",
    )


_RETENTION_MIN = 7_200
"""Seconds. Created tasks are counted again an hour after their minute."""


def check_monitoring(found: MonitoringOptions) -> None:
    """Check the values that their types do not check; raises InvalidSetting."""
    if not found.METRICS_SERIES_MAX:
        raise InvalidSetting("DURABLE_TASKS['METRICS_SERIES_MAX'] is 0: give 1 or more.")
    if found.METRICS_RETENTION < _RETENTION_MIN:
        raise InvalidSetting(
            f"DURABLE_TASKS['METRICS_RETENTION'] is {found.METRICS_RETENTION:g}: give at least"
            f" {_RETENTION_MIN}."
        )
