"""The page before an operator's word is done: exactly which rows would change. Then it is done, and told the same way.

The preview and the deed are the same call of the lifecycle, ``dry_run`` or not. Rows may move between the two; the
answer tells what was done, and says so when this is not what was shown.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_durable_tasks.admin import actions, display, waiting
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.lifecycle.graph_operations import Report
from django_durable_tasks.models import Task

SHOWN = 500
"""So many rows stand on the page; the list of all of them is a file."""
DO, FILE, SEEN = "_do", "_file", "seen"
_PAGE = "admin/django_durable_tasks/graph/preview.html"
_STOP = gettext_lazy("asked to stop")


class ReasonForm(forms.Form):
    """Why; it is kept with the rows."""

    reason = forms.CharField(
        max_length=150, required=False, label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Kept beside your name, for whoever asks later."),
    )  # fmt: skip


class NeededReasonForm(forms.Form):
    """Why; without it nobody knows next week."""

    reason = forms.CharField(max_length=150, label=gettext_lazy("Reason"),
                             help_text=gettext_lazy("Kept beside your name, for whoever asks later."))  # fmt: skip


Do = Callable[[str, str, bool], Report]
"""The one call: by whom, why, and whether nothing is to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What is asked for: its one call, how it is remembered, and where one comes from and goes back to."""

    title: str
    verb: Any
    warning: Any
    do: Do
    remember: Callable[[str], None]
    back: str
    address: str = ""
    form: type[forms.Form] = ReasonForm
    hidden: Sequence[tuple[str, str]] = field(default=())
    tabs: Sequence[dict[str, Any]] = field(default=())


def respond(screen: Any, request: HttpRequest, deed: Deed) -> HttpResponse:
    """Show what the operation would change; if the form of that page was posted, do it and show what it changed.

    A preview carries the deed out and rolls it back, which locks rows. So it is made for a POST only; a page that is
    merely opened shows a button that asks for it.
    """
    if request.method != "POST":
        return _page(screen, request, deed, {"asking": True})
    doing = DO in request.POST
    form = deed.form(request.POST if doing else None)
    if doing and form.is_valid():
        try:
            return _done(screen, request, deed, form.cleaned_data["reason"])
        except DurableTasksError as refused:
            form.add_error(None, _("Nothing was changed. %s") % refused)
    try:
        report = deed.do(actions.who(request), "", True)
    except DurableTasksError as refused:
        return _page(screen, request, deed, {"problem": str(refused), "form": form})
    if FILE in request.POST:
        return _file(report)
    return _page(screen, request, deed, {"form": form, "seen": digest(report), **told(report)})


def _done(screen: Any, request: HttpRequest, deed: Deed, reason: str) -> HttpResponse:
    report = deed.do(actions.who(request), reason, False)
    if report.changes or report.asked:
        deed.remember(f"{deed.title}. {summed_up(report)} {reason}".strip())
    other = request.POST.get(SEEN, "") != digest(report)
    return _page(screen, request, deed, {"done": True, "other": other, "reason": reason, **told(report)})


def _page(screen: Any, request: HttpRequest, deed: Deed, more: dict[str, Any]) -> HttpResponse:
    context = {**screen.admin_site.each_context(request), "opts": screen.opts, "media": screen.media, "deed": deed,
               "title": deed.title, "do": DO, "file": FILE, "seen_name": SEEN, **more}  # fmt: skip
    return TemplateResponse(request, _PAGE, context)


def digest(report: Report) -> str:
    """Return a short name of what would change, to tell whether it is what was shown."""
    lines = sorted(f"{change.task_id} {change.before} {change.after}" for change in report.changes)
    asked = sorted(str(key) for key in report.asked)
    return hashlib.sha256("\n".join([*lines, *asked]).encode()).hexdigest()[:16]


def told(report: Report) -> dict[str, Any]:
    """Return the rows of a report as the pages show them: summed up, and the first SHOWN one by one."""
    changed = {change.task_id for change in report.changes}
    asked = [key for key in report.asked if key not in changed]
    known = waiting.named(asked[:SHOWN])
    lines = [
        {
            "link": display.link(display.page_of("task", change.task_id), change.step or change.name),
            "name": change.name if change.step else "", "before": display.badge(change.before, change.before),
            "after": _after(change.after, stops=change.task_id in report.asked), "why": display.clean(change.reason),
        }
        for change in report.changes[:SHOWN]
    ]  # fmt: skip
    lines += [
        {"link": _asked_link(key, known), "name": "", "before": display.badge("running", "RUNNING"),
         "after": _after("", stops=True), "why": ""}
        for key in asked[: SHOWN - len(lines)]
    ]  # fmt: skip
    number = len(report.changes) + len(asked)
    return {"lines": lines, "number": number, "unshown": number - len(lines), "sums": _sums(report, len(asked))}


def _asked_link(key: uuid.UUID, known: dict[uuid.UUID, Task]) -> SafeString:
    title = waiting.title(known[key]) if key in known else display.short(key)
    return display.link(display.page_of("task", key), title)


def _after(status: str, *, stops: bool) -> SafeString | str:
    return display.badges(
        [*([(status, status)] if status else []), *([("asked-to-stop", str(_STOP))] if stops else [])]
    )


def _sums(report: Report, asked: int) -> list[dict[str, Any]]:
    moves = Counter((change.before, change.after) for change in report.changes)
    found = [
        {"before": display.badge(before, before), "after": _after(after, stops=False), "number": number}
        for (before, after), number in moves.most_common()
    ]
    if asked:
        found.append({"before": display.badge("running", "RUNNING"), "after": _after("", stops=True), "number": asked})
    return found


def summed_up(report: Report) -> str:
    """Return what changed in a sentence, for messages and histories."""
    number = len(report.changes)
    moves = Counter(
        f"{change.before} → {change.after}" if change.before != change.after else _("stays %s") % change.after
        for change in report.changes
    )
    parts = ", ".join(f"{count:,} {move}" for move, count in moves.most_common())
    changed = ngettext("%s row changed", "%s rows changed", number) % f"{number:,}"
    stopping = len(set(report.asked) - {change.task_id for change in report.changes})
    asked = ngettext("%d running one was asked to stop.", "%d running ones were asked to stop.", stopping) % stopping
    return f"{changed}{f': {parts}' if parts else ''}.{f' {asked}' if stopping else ''}"


def _file(report: Report) -> HttpResponse:
    rows = [
        {"task": str(change.task_id), "step": change.step, "name": change.name, "before": change.before,
         "after": change.after, "reason": display.clean(change.reason)}
        for change in report.changes
    ]  # fmt: skip
    found = {"changes": rows, "asked_to_stop": [str(key) for key in report.asked]}
    return JsonResponse(
        found, headers={"Content-Disposition": 'attachment; filename="changes.json"', "Cache-Control": "no-store"},
        json_dumps_params={"indent": 1},
    )  # fmt: skip
