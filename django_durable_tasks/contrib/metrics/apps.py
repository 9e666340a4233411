"""The application configuration of the metrics."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import import_string

from django_durable_tasks import conf, contrib, ports

# Imported on use, because it needs the extra [metrics].
_EXPOSITION = "django_durable_tasks.contrib.metrics.exposition."


class MetricsConfig(contrib.OptionalAppConfig):
    """Prometheus, charts and OpenTelemetry."""

    name = "django_durable_tasks.contrib.metrics"
    label = "durable_tasks_metrics"
    verbose_name = "Metrics of durable tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the job and the receivers. The imports need the loaded models."""
        from django_durable_tasks.contrib.metrics import counts
        from django_durable_tasks.scheduler.jobs import Job, register_job
        from django_durable_tasks.states.attempt_log import ended_without_attempt
        from django_durable_tasks.tasks import retention

        register_job(
            "count_metrics",
            # The pauses keep the job from using more than a third of the leader's maintenance.
            lambda: Job(
                "count_metrics", counts.CountMetrics(), every=5.0, pause_factor=2, dispatches=False
            ),
        )
        ended_without_attempt.connect(counts.record_endings, dispatch_uid=self.label)
        retention.register_hold(counts.settled_until)
        try:
            traces_are_wanted = conf.settings().TRACES
        except conf.InvalidSetting:
            return  # the check E001 reports it
        if traces_are_wanted:
            try:
                from django_durable_tasks.contrib.metrics.tracing import OpenTelemetryTraces
            except ImportError as error:
                raise conf.InvalidSetting(
                    "DURABLE_TASKS['TRACES'] is True: install django-durable-tasks[otel]."
                ) from error
            ports.bind_traces(OpenTelemetryTraces())

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type, in the format that ``Accept`` asks for.
        Raises ImportError without the extra [metrics].
        """
        written: tuple[bytes, str] = import_string(_EXPOSITION + "written")(accept)
        return written

    def server(self, host: str, port: int) -> Any:
        """Return a server of the metrics, not started. Raises ImportError without the extra
        [metrics], and OSError if the address cannot be bound.
        """
        return import_string(_EXPOSITION + "MetricsServer")(host, port)
