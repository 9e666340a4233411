"""Operations in the admin: their forms, confirmation pages, and actions on selected rows."""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core import signing
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import dependencies_cell, display
from django_durable_tasks.admin.display import page_of
from django_durable_tasks.admin.fields import InstantField, JsonField
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Task
from django_durable_tasks.operations.operation import (
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
)
from django_durable_tasks.workflows.operations import GraphReport

# The form of an operation, created from the fields in the registry.


REASON_LENGTH = 150
TASK_ID_ATTRIBUTES = {"autocomplete": "off", "spellcheck": "false", "placeholder": "0195f3c2-…"}


class OperationForm(forms.Form):
    """The fields of one operation and its reason."""

    operation: Operation

    def clean(self) -> dict[str, Any]:
        """Apply the check of the operation, unless one of its fields is invalid already."""
        given: dict[str, Any] = super().clean() or {}
        for name, problem in self.operation.check(given).items():
            if name not in self.errors:
                self.add_error(name, problem)
        return given

    @property
    def reason(self) -> str:
        """The reason that was given."""
        reason: str = self.cleaned_data["reason"]
        return reason

    def values(self) -> dict[str, Any]:
        """Return the values of the fields, without the reason; an empty field has its default."""
        given = {field.name: self.cleaned_data[field.name] for field in self.operation.fields}
        defaults = {field.name: field.default for field in self.operation.fields}
        return {
            name: defaults[name] if value in (None, "") else value for name, value in given.items()
        }


def reason_field(operation: Operation) -> forms.CharField:
    """Return the field of the reason."""
    return forms.CharField(
        label=_("Reason"),
        max_length=REASON_LENGTH,
        required=operation.reason != Reason.OPTIONAL,
        help_text=REASON_HELP,
    )


def form_fields(operation: Operation) -> dict[str, forms.Field]:
    """Return the fields of an operation by their names, without the reason."""
    return {field.name: _MAKERS[field.kind](field) for field in operation.fields}


def form_class(operation: Operation) -> type[OperationForm]:
    """Return the form of an operation; the reason comes last."""
    return type(
        "OperationForm",
        (OperationForm,),
        {"operation": operation, **form_fields(operation), "reason": reason_field(operation)},
    )


def reason_form(operation: Operation) -> type[OperationForm]:
    """Return the form with the reason only, for objects that are selected already."""
    return type(
        "ReasonForm",
        (OperationForm,),
        {"operation": operation, "reason": reason_field(operation), "clean": forms.Form.clean},
    )


def _texts(field: Argument) -> dict[str, Any]:
    return {"label": field.label, "help_text": field.help, "required": field.required}


def _number(kind: type[forms.IntegerField]) -> Callable[[Argument], forms.Field]:
    def make(field: Argument) -> forms.Field:
        return kind(**_texts(field), min_value=field.minimum, initial=field.default)

    return make


def _choice(field: Argument) -> forms.Field:
    return forms.ChoiceField(**_texts(field), choices=list(field.choices), initial=field.default)


_MAKERS: dict[ArgumentType, Callable[[Argument], forms.Field]] = {
    ArgumentType.TEXT: lambda field: forms.CharField(**_texts(field), max_length=200),
    ArgumentType.INSTANT: lambda field: InstantField(**_texts(field)),
    ArgumentType.INTEGER: _number(forms.IntegerField),
    ArgumentType.SECONDS: _number(forms.FloatField),
    ArgumentType.FLAG: lambda field: forms.BooleanField(**(_texts(field) | {"required": False})),
    ArgumentType.CHOICE: _choice,
    ArgumentType.JSON_LIST: lambda field: JsonField(list, label=field.label, help_text=field.help),
    ArgumentType.JSON_OBJECT: lambda field: JsonField(
        dict, label=field.label, help_text=field.help
    ),
    ArgumentType.TASK_ID: lambda field: forms.UUIDField(
        **_texts(field), widget=forms.TextInput(attrs=TASK_ID_ATTRIBUTES)
    ),
    ArgumentType.REQUEST_ID: lambda field: forms.CharField(
        max_length=200, widget=forms.HiddenInput
    ),
}


# The admin actions of the operations on selected rows: the confirmation page, one call, and a
# message about the result.


AT_MOST = 1_000
"""How many rows one action changes. If more are selected, the message reports it."""

CONFIRMED = "durable_confirmed"
ROWS = "durable_rows"
_SALT = "django_durable_tasks.admin.actions"
_GROUPS = 10
FROM_PAGE = "durable_from_page"


def title_of(action: Any) -> str:
    """Return the title of an entry of `ModelAdmin.get_actions`: a tuple before Django 6.1, an
    Action since.
    """
    return str(action[2] if isinstance(action, tuple) else action.description)


def action_of(operation: Operation, name: str = "") -> Callable[..., HttpResponse | None]:
    """Return the admin action of an operation, for the ``actions`` of a ModelAdmin."""

    def action(screen: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        return run(screen, request, rows, operation)

    return labelled(action, operation, name)


def labelled(
    action: Callable[..., HttpResponse | None], operation: Operation, name: str = ""
) -> Callable[..., HttpResponse | None]:
    """Give an admin action the name, the title and the operation, whose permission it needs."""
    action.__name__ = name or operation.name
    action.short_description = format_lazy("{}…", operation.title)  # type: ignore[attr-defined]
    action.operation = operation  # type: ignore[attr-defined]
    return action


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The rows that an action changes, and the numbers of selected rows that it does not change.

    ``alone``: their status does not allow the operation. ``left_out``: they match
    ``only_if_chosen`` of the operation and were selected with a whole list. ``gone``: their status
    has changed since the confirmation page. ``explicit`` are the keys that match ``only_if_chosen``
    and were selected one by one.
    """

    keys: list[str]
    explicit: list[str]
    alone: int
    left_out: int
    more: bool
    gone: int = 0


def who(request: HttpRequest) -> str:
    """Return the user name to record."""
    return request.user.get_username()


def run(
    screen: Any, request: HttpRequest, rows: QuerySet[Any], operation: Operation
) -> HttpResponse | None:
    """Perform the operation on the selected rows, at most AT_MOST, after a confirmation if it
    requires one.

    The confirmation page contains the signed ids of its rows. Only these rows are changed, and
    those whose status has changed since are reported.
    """
    asks = reason_form(operation)
    shown = _shown(screen, request) if CONFIRMED in request.POST else None
    if shown is not None:
        form = asks(request.POST)
        if not form.is_valid():
            return _ask(screen, request, shown, operation, form)
        left = _still(screen, request, shown, operation)
        return _act(screen, request, left, operation, form.reason)
    chosen = _chosen(rows, operation, across=_across(request))
    if operation.confirm:
        return _ask(screen, request, chosen, operation, asks())
    return _act(screen, request, chosen, operation, "")


def _across(request: HttpRequest) -> bool:
    """Return whether the whole list was selected, by Django's ``select_across``."""
    return bool(forms.BooleanField().to_python(request.POST.get("select_across", "0")))


def _chosen(rows: QuerySet[Any], operation: Operation, *, across: bool) -> _Chosen:
    applies_to = operation.applies_to or Q()
    left_out = 0
    if across and operation.only_if_chosen is not None:
        left_out = rows.filter(operation.only_if_chosen).order_by()[:AT_MOST].count()
        rows = rows.exclude(operation.only_if_chosen)
    keys = [str(key) for key in rows.filter(applies_to).values_list("pk", flat=True)[: AT_MOST + 1]]
    explicit = [] if across else _explicit(rows, keys[:AT_MOST], operation)
    alone = rows.exclude(applies_to).order_by()[:AT_MOST].count() if applies_to else 0
    return _Chosen(keys[:AT_MOST], explicit, alone, left_out, len(keys) > AT_MOST)


def _explicit(rows: QuerySet[Any], keys: list[str], operation: Operation) -> list[str]:
    if operation.only_if_chosen is None:
        return []
    return [
        str(key)
        for key in rows.filter(operation.only_if_chosen, pk__in=keys)
        .order_by()
        .values_list("pk", flat=True)
    ]


def _snapshot(screen: Any, request: HttpRequest, chosen: _Chosen) -> str:
    return signing.dumps([*_asked(screen, request), asdict(chosen)], salt=_SALT, compress=True)


def _asked(screen: Any, request: HttpRequest) -> list[str]:
    """Return the salt of a signed snapshot: the table, the action and the user."""
    return [screen.opts.label, request.POST.get("action", ""), str(request.user.pk)]


def _shown(screen: Any, request: HttpRequest) -> _Chosen | None:
    """Return the rows that the confirmation page showed; None if the request does not
    contain them.
    """
    try:
        *asked, chosen = signing.loads(request.POST.get(ROWS, ""), salt=_SALT)
    except signing.BadSignature:
        return None
    return _Chosen(**chosen) if asked == _asked(screen, request) else None


def _still(screen: Any, request: HttpRequest, shown: _Chosen, operation: Operation) -> _Chosen:
    """Return those of the shown rows whose status still allows the operation."""
    rows = screen.get_queryset(request).filter(operation.applies_to or Q(), pk__in=shown.keys)
    if operation.only_if_chosen is not None:
        rows = rows.exclude(operation.only_if_chosen & ~Q(pk__in=shown.explicit))
    keys = [str(key) for key in rows.values_list("pk", flat=True)]
    return replace(shown, keys=keys, gone=len(shown.keys) - len(keys))


def _ask(
    screen: Any, request: HttpRequest, chosen: _Chosen, operation: Operation, form: forms.Form
) -> HttpResponse:
    rows = screen.get_queryset(request).filter(pk__in=chosen.keys)
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "form": form,
        "title": operation.title,
        "warning": operation.help,
        "number": len(chosen.keys),
        "alone": chosen.alone,
        "left_out": operation.left_out % {"number": chosen.left_out} if chosen.left_out else "",
        "more": chosen.more,
        "groups": _groups(rows, operation),
        "shown": rows.filter(pk__in=chosen.keys[:20]),
        "unshown": max(0, len(chosen.keys) - 20),
        "action": request.POST.get("action"),
        "checkbox": ACTION_CHECKBOX_NAME,
        "selected": request.POST.getlist(ACTION_CHECKBOX_NAME)[:1],
        "rows": ROWS,
        "snapshot": _snapshot(screen, request, chosen),
        "confirmed": CONFIRMED,
        "from_page_name": FROM_PAGE,
        "from_page": request.POST.get(FROM_PAGE, ""),
        "back": _back(screen, request),
    }
    return TemplateResponse(request, "admin/django_durable_tasks/confirm.html", context)


def _groups(rows: QuerySet[Any], operation: Operation) -> list[tuple[int, str]]:
    """Return the number of rows of each group, the largest first."""
    if not operation.group_by:
        return []
    kinds = Counter(
        " ".join(map(str, kind)) for kind in rows.order_by().values_list(*operation.group_by)
    )
    return [(number, kind) for kind, number in kinds.most_common(_GROUPS)]


def _act(
    screen: Any, request: HttpRequest, chosen: _Chosen, operation: Operation, reason: str
) -> HttpResponse:
    rows = screen.model.objects.using(screen.get_queryset(request).db).filter(pk__in=chosen.keys)
    try:
        done = operation.perform_on(rows, by=who(request), reason=reason)
    except DurableTasksError as refused:
        screen.message_user(request, gettext("Nothing was changed. %s") % refused, messages.ERROR)
        return HttpResponseRedirect(_back(screen, request))
    changed = done.changed
    if changed:
        message = f"{operation.title}. {done.message} {reason}".strip()
        remember(screen, request, chosen.keys, message)
    gone = len(chosen.keys) - changed + chosen.gone
    parts = (
        done.message,
        ngettext(
            "%d row has changed in the meantime and was left unchanged.",
            "%d rows have changed in the meantime and were left unchanged.",
            gone,
        )
        % gone
        if gone
        else "",
        ngettext(
            "The status of %d row does not allow it.",
            "The status of %d rows does not allow it.",
            chosen.alone,
        )
        % chosen.alone
        if chosen.alone
        else "",
        operation.left_out % {"number": chosen.left_out} if chosen.left_out else "",
        gettext("More rows match: run the action again for the rest.") if chosen.more else "",
    )
    text = " ".join(part for part in parts if part)
    screen.message_user(request, text, messages.SUCCESS if changed else messages.WARNING)
    return HttpResponseRedirect(_back(screen, request))


def remember(screen: Any, request: HttpRequest, keys: list[Any], message: str) -> None:
    """Add an entry to the history of each row."""
    rows = screen.model.objects.using(screen.get_queryset(request).db).filter(pk__in=keys)
    LogEntry.objects.log_actions(
        int(request.user.pk or 0), rows.only("pk", *screen.named_by), CHANGE, message
    )


def _back(screen: Any, request: HttpRequest) -> str:
    """Return the page of the row from which the action was started, otherwise the filtered list."""
    selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
    if request.POST.get(FROM_PAGE) and len(selected) == 1:
        return page_of(screen.opts.model_name, selected[0])
    return request.get_full_path()


# The confirmation page of an operation on dependent tasks: the rows that would change, and after
# the confirmation those that have changed.
#
# Both are the same call of the engine, with or without ``dry_run``. If rows change between the
# two, the second page shows the actual changes and reports the difference.


SHOWN = 500
"""The number of rows on the page. The file contains all of them."""
DO, FILE, SEEN = "_do", "_file", "seen"
_PAGE = "admin/django_durable_tasks/graph/preview.html"
_STOP = _("stop requested")


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
            form.add_error(None, gettext("Nothing was changed. %s") % refused)
    try:
        report = _report(pending.perform(who(request), "", True))
    except DurableTasksError as refused:
        return _page(screen, request, pending, {"problem": str(refused), "form": form})
    if FILE in request.POST:
        return _file(report)
    shown = {"form": form, "seen": digest(report), **changes(report)}
    return _page(screen, request, pending, shown)


def _report(outcome: OperationResult) -> GraphReport:
    report: GraphReport = outcome.value
    return report


def _done(
    screen: Any, request: HttpRequest, pending: PendingOperation, reason: str
) -> HttpResponse:
    report = _report(pending.perform(who(request), reason, False))
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
        else gettext("stays %s") % change.after
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
