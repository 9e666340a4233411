"""Dependency diagrams on pages and as files. The nodes of the SVG link to the pages of
their tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_durable_tasks.admin import display
from django_durable_tasks.diagrams import FORMATS, Diagram, draw
from django_durable_tasks.engine.workflows import graph_data
from django_durable_tasks.models import Task, WorkflowRun

AT_ONCE = 2_000
"""The maximum number of tasks of a diagram that is drawn without a click."""
NEAR = 60
"""The number of tasks in the diagram on the page of a task."""
_TYPES = {"svg": "image/svg+xml", "json": "application/json"}
_ENDINGS = {"text": "txt", "mermaid": "mmd", "svg": "svg", "json": "json"}


def linked(diagram: Diagram) -> Diagram:
    """Return the diagram with a link from each node to the page of its task."""
    nodes = tuple(replace(node, href=display.page_of("task", node.id)) for node in diagram.nodes)
    return replace(diagram, nodes=nodes)


def inline(diagram: Diagram) -> SafeString:
    """Return the SVG for a page; all foreign text in it is already escaped."""
    return mark_safe(draw(linked(diagram), "svg"))  # noqa: S308


def may_view_tasks(request: HttpRequest) -> bool:
    """Return whether this user may view tasks, because a diagram contains their names."""
    return bool(request.user.has_perm("django_durable_tasks.view_task"))


def files_of(model: str, key: uuid.UUID) -> list[tuple[str, str]]:
    """Return the names and URLs of the diagram in each format."""
    name = f"admin:django_durable_tasks_{model}_graph"
    return [(kind, reverse(name, args=[key, ending])) for kind, ending in _ENDINGS.items()]


def file_view(
    screen: Any, read: Callable[[Any], Diagram]
) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view that serves the diagram of a row as a file."""
    kinds = {ending: kind for kind, ending in _ENDINGS.items() if kind in FORMATS}

    def view(request: HttpRequest, object_id: uuid.UUID, ending: str) -> HttpResponse:
        if not screen.has_view_permission(request) or not may_view_tasks(request):
            raise PermissionDenied
        row = screen.get_queryset(request).filter(pk=object_id).first()
        if row is None or ending not in kinds:
            raise Http404(_("There is no such diagram."))
        kind = kinds[ending]
        answer = HttpResponse(
            draw(read(row), kind), content_type=f"{_TYPES.get(kind, 'text/plain')}; charset=utf-8"
        )
        answer["Content-Disposition"] = (
            f'attachment; filename="{row._meta.model_name}-{row.pk}.{ending}"'
        )
        answer["X-Content-Type-Options"] = "nosniff"
        return answer

    return view


def of_run(run: WorkflowRun) -> Diagram:
    """Read all tasks of a run."""
    return graph_data.of_run(run)


def around(task: Task) -> Diagram:
    """Read the tasks around a task, nearest first."""
    return graph_data.around(task, NEAR)
