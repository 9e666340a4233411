"""How far a run of a workflow is: a bar for the eye, and the same numbers as words for
everybody.
"""

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
    """Return how many of its tasks ended in each status, as they were counted so far; those of none
    are left out.
    """
    found = ((str(status), int(getattr(run, column))) for status, column in COUNTS.items())
    return [(status, number) for status, number in found if number]


def words(run: WorkflowRun) -> str:
    """Return the numbers in words: ``12 of 20 ended: 10 SUCCESS, 2 FAILED``."""
    told = _("%(ended)s of %(total)s ended") % {
        "ended": f"{run.ended:,}",
        "total": f"{run.total:,}",
    }
    parts = ", ".join(f"{number:,} {status}" for status, number in counted(run))
    return f"{told}: {parts}" if parts else told


def bar(run: WorkflowRun) -> SafeString:
    """Return a bar that the endings share as they share the tasks; what has not ended is left
    empty.
    """
    whole, x, parts = max(run.total, run.ended, 1), 0.0, []
    for status, number in counted(run):
        width = 100 * number / whole
        parts.append((status.lower(), f"{x:.2f}", f"{width:.2f}"))
        x += width
    return format_html(_BAR, words(run), format_html_join("", _PART, parts))


def cell(run: WorkflowRun) -> SafeString:
    """Return the bar with its words beneath."""
    return format_html('{}<span class="durable-beneath">{}</span>', bar(run), words(run))


def marks(run: Any) -> list[tuple[str, str]]:
    """Return the status of a run and what is true beside it: (mark, text). ``run.seen_at`` is the
    database's now.
    """
    over = run.is_open and run.deadline_at is not None and run.deadline_at <= run.seen_at
    true = {"late": over, "asked to stop": run.is_open and run.cancel_requested_at is not None}
    beside = [(text.replace(" ", "-"), text) for text, holds in true.items() if holds]
    return [(run.status, run.status), *beside]


def took(run: Any) -> str:
    """Return how long the run took, or takes until now."""
    if run.status == WorkflowStatus.STARTING:
        return display.NOTHING
    return display.duration(((run.completed_at or run.seen_at) - run.created_at).total_seconds())


def by_status(numbers: Mapping[str, int]) -> list[tuple[SafeString, str, int]]:
    """Return a mark, the status and its number for each status that occurs."""
    return [
        (display.badge(status, status), status, number)
        for status, number in numbers.items()
        if number
    ]
