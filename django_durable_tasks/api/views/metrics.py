"""``/metrics``: the metrics of the installation as text for Prometheus or OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpResponse
from django.utils.module_loading import import_string
from rest_framework.request import Request

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.rules.tenants.api_keys import ApiScope

_WRITTEN = "django_durable_tasks.metrics.exposition.written"
"""Imported on use, because it needs the extra [metrics]."""


class MetricsEndpoint(ApiEndpoint):
    """The metrics of all tenants."""

    reads = ("node",)
    is_shared = True
    scopes: ClassVar = {"GET": ApiScope.METRICS}
    media_types = ("text/plain", "text/*", "application/openmetrics-text")

    def get(self, request: Request) -> HttpResponse:
        """Return the metrics; 404 unless METRICS is set."""
        if not conf.settings().METRICS:
            raise Problem(problems.NOT_FOUND, "The setting METRICS is off.")
        body, content_type = _written()(request.headers.get("Accept", ""))
        return HttpResponse(body, content_type=content_type)


def _written() -> Callable[[str], Any]:
    try:
        found: Callable[[str], Any] = import_string(_WRITTEN)
    except ImportError:
        text = "The server lacks the extra django-durable-tasks[metrics]."
        raise Problem(problems.NOT_FOUND, text) from None
    return found
