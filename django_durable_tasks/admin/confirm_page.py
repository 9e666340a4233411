"""The confirmation page of an operation on dependent tasks: the rows that would change, and after
the confirmation those that have changed.

Both are the same call of the engine, with or without ``dry_run``. If rows change between the two,
the second page shows the actual changes and reports the difference.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_durable_tasks.admin import actions, dependencies_cell, display
from django_durable_tasks.admin.operation_form import reason_form
from django_durable_tasks.engine.workflows.operations import GraphReport
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Task
from django_durable_tasks.operations.operation import Operation, OperationResult

SHOWN = 500
"""The number of rows on the page. The file contains all of them."""
DO, FILE, SEEN = "_do", "_file", "seen"
_PAGE = "admin/django_durable_tasks/graph/preview.html"
_STOP = gettext_lazy("stop requested")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOperation:
    """An operation on certain objects, which is shown first and then performed.

    ``perform`` takes the user name, the reason and the flag of the dry run.
    """

    title: str
    operation: Operation
    help: Any
    perform: Callable[[str, str, bool], OperationResult]
    remember: Callable[[str], None]
    back: str
    address: str = ""
    hidden: Sequence[tuple[str, str]] = field(default=())
    tabs: Sequence[dict[str, Any]] = field(default=())


def respond(screen: Any, request: HttpRequest, pending: PendingOperation) -> HttpResponse:
    """Show what the operation would change. If the form of that page was posted, perform it and
    show what it has changed.

    A dry run performs the operation and rolls it back, which locks rows. Therefore it requires a
    POST request; a GET request shows a button for it.
    """
    if request.method != "POST":
        return _page(screen, request, pending, {"asking": True})
    confirmed = DO in request.POST
    form = reason_form(pending.operation)(request.POST if confirmed else None)
    if confirmed and form.is_valid():
        try:
            return _done(screen, request, pending, form.reason)
        except DurableTasksError as refused:
            form.add_error(None, _("Nothing was changed. %s") % refused)
    try:
        report = _report(pending.perform(actions.who(request), "", True))
    except DurableTasksError as refused:
        return _page(screen, request, pending, {"problem": str(refused), "form": form})
    if FILE in request.POST:
        return _file(report)
    shown = {"form": form, "seen": digest(report), **changes(report)}
    return _page(screen, request, pending, shown)


def _report(outcome: OperationResult) -> GraphReport:
    if outcome.report is None:
        raise TypeError("An operation on a graph has to return a report.")
    return outcome.report


def _done(
    screen: Any, request: HttpRequest, pending: PendingOperation, reason: str
) -> HttpResponse:
    report = _report(pending.perform(actions.who(request), reason, False))
    if report.changes or report.stop_requested:
        pending.remember(f"{pending.title}. {summed_up(report)} {reason}".strip())
    other = request.POST.get(SEEN, "") != digest(report)
    shown = {"done": True, "other": other, "reason": reason, **changes(report)}
    return _page(screen, request, pending, shown)


def _page(
    screen: Any, request: HttpRequest, pending: PendingOperation, more: dict[str, Any]
) -> HttpResponse:
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "pending": pending,
        "title": pending.title,
        "do": DO,
        "file": FILE,
        "seen_name": SEEN,
        **more,
    }
    return TemplateResponse(request, _PAGE, context)


def digest(report: GraphReport) -> str:
    """Return a hash of the changes, to compare them with the displayed ones."""
    lines = sorted(f"{change.task_id} {change.before} {change.after}" for change in report.changes)
    asked = sorted(str(key) for key in report.stop_requested)
    return hashlib.sha256("\n".join([*lines, *asked]).encode()).hexdigest()[:16]


def changes(report: GraphReport) -> dict[str, Any]:
    """Return the context of a report: its totals, and the first SHOWN changes."""
    changed = {change.task_id for change in report.changes}
    asked = [key for key in report.stop_requested if key not in changed]
    known = dependencies_cell.named(asked[:SHOWN])
    lines = [
        {
            "link": display.link(
                display.page_of("task", change.task_id), change.step or change.name
            ),
            "name": change.name if change.step else "",
            "before": display.badge(change.before, change.before),
            "after": _after(change.after, stops=change.task_id in report.stop_requested),
            "why": display.clean(change.reason),
        }
        for change in report.changes[:SHOWN]
    ]
    lines += [
        {
            "link": _asked_link(key, known),
            "name": "",
            "before": display.badge("running", "RUNNING"),
            "after": _after("", stops=True),
            "why": "",
        }
        for key in asked[: SHOWN - len(lines)]
    ]
    number = len(report.changes) + len(asked)
    return {
        "lines": lines,
        "number": number,
        "unshown": number - len(lines),
        "sums": _sums(report, len(asked)),
    }


def _asked_link(key: uuid.UUID, known: dict[uuid.UUID, Task]) -> SafeString:
    title = dependencies_cell.title(known[key]) if key in known else display.short(key)
    return display.link(display.page_of("task", key), title)


def _after(status: str, *, stops: bool) -> SafeString | str:
    return display.badges(
        [
            *([(status, status)] if status else []),
            *([("stop-requested", str(_STOP))] if stops else []),
        ]
    )


def _sums(report: GraphReport, asked: int) -> list[dict[str, Any]]:
    moves = Counter((change.before, change.after) for change in report.changes)
    found = [
        {
            "before": display.badge(before, before),
            "after": _after(after, stops=False),
            "number": number,
        }
        for (before, after), number in moves.most_common()
    ]
    if asked:
        found.append(
            {
                "before": display.badge("running", "RUNNING"),
                "after": _after("", stops=True),
                "number": asked,
            }
        )
    return found


def summed_up(report: GraphReport) -> str:
    """Return a sentence about the changes, for messages and histories."""
    number = len(report.changes)
    moves = Counter(
        f"{change.before} → {change.after}"
        if change.before != change.after
        else _("stays %s") % change.after
        for change in report.changes
    )
    parts = ", ".join(f"{count:,} {move}" for move, count in moves.most_common())
    changed = ngettext("%s row changed", "%s rows changed", number) % f"{number:,}"
    stopping = len(set(report.stop_requested) - {change.task_id for change in report.changes})
    asked = (
        ngettext(
            "Requested %d running task to stop.", "Requested %d running tasks to stop.", stopping
        )
        % stopping
    )
    return f"{changed}{f': {parts}' if parts else ''}.{f' {asked}' if stopping else ''}"


def _file(report: GraphReport) -> HttpResponse:
    rows = [
        {
            "task": str(change.task_id),
            "step": change.step,
            "name": change.name,
            "before": change.before,
            "after": change.after,
            "reason": display.clean(change.reason),
        }
        for change in report.changes
    ]
    found = {"changes": rows, "stop_requested": [str(key) for key in report.stop_requested]}
    return JsonResponse(
        found,
        headers={
            "Content-Disposition": 'attachment; filename="changes.json"',
            "Cache-Control": "no-store",
        },
        json_dumps_params={"indent": 1},
    )
