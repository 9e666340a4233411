"""The progress of a workflow run as a bar, and as text for screen readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_durable_tasks.admin import display
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.rules.workflows.plan import COUNTS, WorkflowStatus

_BAR = (
    '<svg class="durable-progress" viewBox="0 0 100 8" preserveAspectRatio="none" role="img"'
    ' aria-label="{0}"><title>{0}</title>{1}</svg>'
)
_PART = '<rect class="durable-part-{}" x="{}" y="0" width="{}" height="8"/>'


def counted(run: WorkflowRun) -> list[tuple[str, int]]:
    """Return how many of its tasks ended in each status, as counted so far; zeros are omitted."""
    found = ((str(status), int(getattr(run, column))) for status, column in COUNTS.items())
    return [(status, number) for status, number in found if number]


def words(run: WorkflowRun) -> str:
    """Return the numbers as text: ``12 of 20 ended: 10 SUCCESS, 2 FAILED``."""
    totals = _("%(ended)s of %(total)s ended") % {
        "ended": f"{run.ended:,}",
        "total": f"{run.total:,}",
    }
    parts = ", ".join(f"{number:,} {status}" for status, number in counted(run))
    return f"{totals}: {parts}" if parts else totals


def bar(run: WorkflowRun) -> SafeString:
    """Return a bar with one part per status; the part of open tasks is empty."""
    whole, x, parts = max(run.total, run.ended, 1), 0.0, []
    for status, number in counted(run):
        width = 100 * number / whole
        parts.append((status.lower(), f"{x:.2f}", f"{width:.2f}"))
        x += width
    return format_html(_BAR, words(run), format_html_join("", _PART, parts))


def cell(run: WorkflowRun) -> SafeString:
    """Return the bar with its text below."""
    return format_html('{}<span class="durable-beneath">{}</span>', bar(run), words(run))


def marks(run: Any) -> list[tuple[str, str]]:
    """Return the badges of a run: (class, text) of its status and conditions. ``run.seen_at`` is
    the database's time.
    """
    over = run.is_open and run.deadline_at is not None and run.deadline_at <= run.seen_at
    true = {"late": over, "stop requested": run.is_open and run.cancel_requested_at is not None}
    beside = [(text.replace(" ", "-"), text) for text, holds in true.items() if holds]
    return [(run.status, run.status), *beside]


def took(run: Any) -> str:
    """Return the duration of the run, up to now if it is open."""
    if run.status == WorkflowStatus.STARTING:
        return display.NOTHING
    return display.duration(((run.completed_at or run.seen_at) - run.created_at).total_seconds())


def by_status(numbers: Mapping[str, int]) -> list[tuple[SafeString, str, int]]:
    """Return a badge with the number for each status that occurs."""
    return [
        (display.badge(status, status), status, number)
        for status, number in numbers.items()
        if number
    ]
