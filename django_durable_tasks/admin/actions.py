"""Operations in the admin: their forms, confirmation pages, and actions on selected rows.

Every button, form and confirmation derives from the entry in the registry: permission, title, help,
reason, arguments, modes, and whether there is a dry run.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable_tasks.admin import display
from django_durable_tasks.admin.display import page_of
from django_durable_tasks.admin.fields import InstantField, JsonField, in_zone, refuse
from django_durable_tasks.exceptions import DurableTasksError, TransitionRefused
from django_durable_tasks.models import Task
from django_durable_tasks.operations import (
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
)
from django_durable_tasks.store.tables import BoundedCount
from django_durable_tasks.workflows.operations import GraphReport

# The form of an operation, created from the fields in the registry.


REASON_LENGTH = 150
TASK_ID_ATTRIBUTES = {"autocomplete": "off", "spellcheck": "false", "placeholder": "0195f3c2-…"}


class OperationForm(forms.Form):
    """The arguments of one operation and its reason."""

    operation: Operation
    arguments: Sequence[Argument]

    def clean(self) -> dict[str, Any]:
        """Apply the check of the operation, unless one of its fields is invalid already."""
        cleaned: dict[str, Any] = super().clean() or {}
        for name, problem in self.operation.check(cleaned).items() if self.arguments else ():
            if name not in self.errors:
                self.add_error(name, problem)
        return cleaned

    @property
    def reason(self) -> str:
        """The reason that was given."""
        reason: str = self.cleaned_data["reason"]
        return reason

    def values(self) -> dict[str, Any]:
        """Return the values of the arguments; an empty field has its default."""
        pairs = [(argument, self.cleaned_data[argument.name]) for argument in self.arguments]
        return {
            argument.name: argument.default if value in (None, "") else value
            for argument, value in pairs
        }


def reason_field(operation: Operation) -> forms.CharField:
    """Return the field of the reason."""
    return forms.CharField(
        label=_("Reason"),
        max_length=REASON_LENGTH,
        required=operation.reason != Reason.OPTIONAL,
        help_text=REASON_HELP,
    )


def form_fields(arguments: Sequence[Argument]) -> dict[str, forms.Field]:
    """Return the fields of these arguments by their names."""
    return {argument.name: _MAKERS[argument.kind](argument) for argument in arguments}


def form_class(operation: Operation, arguments: Sequence[Argument]) -> type[OperationForm]:
    """Return the form with these arguments of an operation and, as the last field, the reason."""
    fields = {**form_fields(arguments), "reason": reason_field(operation)}
    attributes = {"operation": operation, "arguments": tuple(arguments)}
    return type("OperationForm", (OperationForm,), {**attributes, **fields})


def _texts(field: Argument) -> dict[str, Any]:
    return {"label": field.label, "help_text": field.help, "required": field.required}


def _number(kind: type[forms.IntegerField]) -> Callable[[Argument], forms.Field]:
    def make(field: Argument) -> forms.Field:
        return kind(**_texts(field), min_value=field.minimum, initial=field.default)

    return make


_MAKERS: dict[ArgumentType, Callable[[Argument], forms.Field]] = {
    ArgumentType.TEXT: lambda field: forms.CharField(**_texts(field), max_length=200),
    ArgumentType.INSTANT: lambda field: InstantField(**_texts(field)),
    ArgumentType.INTEGER: _number(forms.IntegerField),
    ArgumentType.SECONDS: _number(forms.FloatField),
    ArgumentType.FLAG: lambda field: forms.BooleanField(**(_texts(field) | {"required": False})),
    ArgumentType.CHOICE: lambda field: forms.ChoiceField(
        **_texts(field), choices=list(field.choices), initial=field.default
    ),
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


# How many rows one action changes. If more are selected, the message reports it.
AT_MOST = 1_000
# How many groups, and how many rows by name, a confirmation page shows.
_GROUPS, _NAMED = 10, 20
CONFIRMED, ROWS, FROM_PAGE = "durable_confirmed", "durable_rows", "durable_from_page"
_SALT = "django_durable_tasks.admin.actions"


def action_of(operation: Operation) -> Callable[..., HttpResponse | None]:
    """Return the admin action of an operation, for the ``actions`` of a ModelAdmin."""

    def action(model_admin: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        return run(model_admin, request, rows, operation)

    return labelled(action, operation)


def labelled(
    action: Callable[..., HttpResponse | None], operation: Operation
) -> Callable[..., HttpResponse | None]:
    """Give an admin action the name, the title and the operation, whose permission it needs."""
    action.__name__ = operation.name
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
    alone: BoundedCount
    left_out: BoundedCount
    more: bool
    gone: int = 0

    @classmethod
    def signed(cls, data: Mapping[str, Any]) -> _Chosen:
        """Return the rows of a signed page. One of its numbers at the bound may be larger."""
        counts = {
            name: BoundedCount(data[name], data[name] < AT_MOST) for name in ("alone", "left_out")
        }
        return cls(**{**data, **counts})

    @property
    def refused(self) -> str:
        """A sentence about the rows whose status does not allow the operation; empty if there are
        none.
        """
        if not self.alone:
            return ""
        rows = ngettext("%s row", "%s rows", self.alone) % self.alone
        return f"The status of {rows} does not allow it."


def who(request: HttpRequest) -> str:
    """Return the user name to record."""
    return request.user.get_username()


def remember(model_admin: Any, request: HttpRequest, keys: Sequence[Any], message: str) -> None:
    """Add an entry to the history of each row."""
    rows = model_admin.model._default_manager.using(model_admin.get_queryset(request).db)
    named = rows.filter(pk__in=list(keys)).only("pk", *model_admin.named_by)
    LogEntry.objects.log_actions(int(request.user.pk or 0), named, CHANGE, message)


def run(
    model_admin: Any, request: HttpRequest, rows: QuerySet[Any], operation: Operation
) -> HttpResponse | None:
    """Perform the operation on the selected rows, at most AT_MOST, after a confirmation if it
    requires one.

    The confirmation page contains the signed ids of its rows. Only these rows are changed, and
    those whose status has changed since are reported.
    """
    reason_form = form_class(operation, ())
    # The signature covers the table, the action and the user.
    signed = [model_admin.opts.label, request.POST.get("action", ""), str(request.user.pk)]
    if CONFIRMED in request.POST:
        try:
            *signed_action, signed_rows = signing.loads(request.POST.get(ROWS, ""), salt=_SALT)
        except signing.BadSignature:
            signed_action = []
        if signed_action == signed:
            form, chosen = reason_form(request.POST), _Chosen.signed(signed_rows)
            if not form.is_valid():
                return _ask(model_admin, request, chosen, operation, form, signed)
            fitting = model_admin.get_queryset(request).filter(
                operation.applies_to or Q(), pk__in=chosen.keys
            )
            if operation.only_if_chosen is not None:
                fitting = fitting.exclude(operation.only_if_chosen & ~Q(pk__in=chosen.explicit))
            keys = [str(key) for key in fitting.values_list("pk", flat=True)]
            remaining = replace(chosen, keys=keys, gone=len(chosen.keys) - len(keys))
            return _act(model_admin, request, remaining, operation, form.reason)
    applies_to, only_if_chosen = operation.applies_to or Q(), operation.only_if_chosen
    # Whether the whole list was selected.
    across = bool(forms.BooleanField().to_python(request.POST.get("select_across", "0")))
    left_out, explicit = BoundedCount(0), list[str]()
    if across and only_if_chosen is not None:
        left_out = BoundedCount.of(rows.filter(only_if_chosen), AT_MOST)
        rows = rows.exclude(only_if_chosen)
    matching = [
        str(key) for key in rows.filter(applies_to).values_list("pk", flat=True)[: AT_MOST + 1]
    ]
    if not across and only_if_chosen is not None:
        one_by_one = rows.filter(only_if_chosen, pk__in=matching[:AT_MOST]).order_by()
        explicit = [str(key) for key in one_by_one.values_list("pk", flat=True)]
    unfit = rows.exclude(applies_to) if applies_to else rows.none()
    alone = BoundedCount.of(unfit, AT_MOST)
    chosen = _Chosen(matching[:AT_MOST], explicit, alone, left_out, len(matching) > AT_MOST)
    if operation.confirm:
        return _ask(model_admin, request, chosen, operation, reason_form(), signed)
    return _act(model_admin, request, chosen, operation, "")


def _ask(
    model_admin: Any,
    request: HttpRequest,
    chosen: _Chosen,
    operation: Operation,
    form: forms.Form,
    signed: list[str],
) -> HttpResponse:
    rows = model_admin.get_queryset(request).filter(pk__in=chosen.keys)
    kinds = rows.order_by().values_list(*operation.group_by) if operation.group_by else ()
    groups = Counter(" ".join(map(str, kind)) for kind in kinds)
    named_rows = rows.filter(pk__in=chosen.keys[:_NAMED])
    response: HttpResponse = model_admin.page(
        request,
        "confirm",
        operation.title_for(len(chosen.keys)),
        form=form,
        warning=operation.help,
        chosen=chosen,
        number=len(chosen.keys),
        left_out=operation.left_out % {"number": chosen.left_out} if chosen.left_out else "",
        groups=groups.most_common(_GROUPS),
        shown=named_rows,
        lines=[model_admin.line_of(row) for row in named_rows],
        unshown=max(0, len(chosen.keys) - _NAMED),
        hidden=[
            *(
                (ACTION_CHECKBOX_NAME, key)
                for key in request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]
            ),
            ("action", request.POST.get("action", "")),
            (ROWS, signing.dumps([*signed, asdict(chosen)], salt=_SALT, compress=True)),
            *([(FROM_PAGE, "1")] if request.POST.get(FROM_PAGE) else []),
            (CONFIRMED, "1"),
        ],
        back=_back(model_admin, request),
    )
    return response


def _act(
    model_admin: Any, request: HttpRequest, chosen: _Chosen, operation: Operation, reason: str
) -> HttpResponse:
    rows = model_admin.model.objects.using(model_admin.get_queryset(request).db)
    back = HttpResponseRedirect(_back(model_admin, request))
    try:
        done = operation.perform_on(rows.filter(pk__in=chosen.keys), by=who(request), reason=reason)
    except DurableTasksError as refused:
        model_admin.message_user(request, f"Nothing was changed. {refused}", messages.ERROR)
        return back
    if done.changed:
        message = f"{operation.title}. {done.message} {reason}".strip()
        remember(model_admin, request, chosen.keys, message)
    gone = len(chosen.keys) - done.changed + chosen.gone
    sentences = [done.message]
    if gone:
        text = ngettext(
            "%d row has changed in the meantime and was left unchanged.",
            "%d rows have changed in the meantime and were left unchanged.",
            gone,
        )
        sentences.append(text % gone)
    sentences.append(chosen.refused)
    if chosen.left_out:
        sentences.append(operation.left_out % {"number": chosen.left_out})
    if chosen.more:
        sentences.append("More rows match: run the action again for the rest.")
    level = messages.SUCCESS if done.changed else messages.WARNING
    model_admin.message_user(request, " ".join(filter(None, sentences)), level)
    return back


def _back(model_admin: Any, request: HttpRequest) -> str:
    """Return the page of the row from which the action was started, otherwise the filtered list."""
    selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
    if request.POST.get(FROM_PAGE) and len(selected) == 1:
        return page_of(model_admin.opts.model_name, selected[0])
    return request.get_full_path()


# The page of an operation on one object, or on certain objects: a form if it has arguments, and a
# preview if it has a dry run.


# The number of rows on the page. The file contains all of them.
SHOWN = 500
DO, LOOK, FILE, SEEN = "_do", "_look", "_file", "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPage:
    """An operation on certain objects.

    ``values`` are the arguments that the form does not ask for. ``keys`` are the rows whose history
    gets an entry, which begins with ``note``; ``of`` is their ModelAdmin. ``label`` is the
    beginning of the message, ``zone`` that of the form's wall times. ``report`` returns how the
    page shows the value of a dry run.
    """

    operation: Operation
    subject: Any
    title: str
    back: str
    of: Any
    keys: Sequence[Any]
    help: Any = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    label: str = ""
    zone: str | None = None
    report: Callable[[Any], Any] | None = None
    address: str = ""
    hidden: Sequence[tuple[str, str]] = ()
    tabs: Sequence[dict[str, Any]] = ()

    def perform(self, request: HttpRequest, reason: str, **values: Any) -> OperationResult:
        """Perform the operation in the name of the user."""
        arguments = {**self.values, **values}
        return self.operation.perform(self.subject, by=who(request), reason=reason, **arguments)

    def remember(self, request: HttpRequest, title: str, text: str, reason: str) -> None:
        """Add an entry to the history of the rows."""
        remember(self.of, request, self.keys, f"{self.note}{title}. {text} {reason}".strip())


def permitted(
    model_admin: Any, request: HttpRequest, offered: Sequence[Operation], name: str
) -> Operation:
    """Return the operation with this name. Raises Http404, and PermissionDenied for a user who may
    not perform it or not view the rows.
    """
    operation = next((offer for offer in offered if offer.name == name), None)
    if operation is None:
        raise Http404("There is no such operation.")
    if not model_admin.has_view_permission(request) or not model_admin.permits(request, operation):
        raise PermissionDenied
    return operation


def respond(model_admin: Any, request: HttpRequest, page: OperationPage) -> HttpResponse:
    """Show the form of the operation, or what it would change, and perform it when that is
    confirmed.
    """
    arguments = [argument for argument in page.operation.fields if argument.name not in page.values]
    if arguments or not page.operation.dry_run:
        return _respond_with_form(model_admin, request, page, arguments)
    return _respond_with_preview(model_admin, request, page)


def _respond_with_form(
    model_admin: Any, request: HttpRequest, page: OperationPage, arguments: Sequence[Argument]
) -> HttpResponse:
    """Show the form, and with the button LOOK the dry run; perform the operation by the other
    button. Links prefill the form by their query string.
    """
    operation, posted = page.operation, request.method == "POST"
    linked = {
        argument.name: request.GET[argument.name]
        for argument in arguments
        if argument.name in request.GET
    }
    initial = {"request_id": uuid.uuid4(), **linked}
    form = form_class(operation, arguments)(request.POST if posted else None, initial=initial)
    in_zone(form, page.zone)
    report = None
    if posted and form.is_valid():
        looks = operation.dry_run and LOOK in request.POST
        try:
            preview = {"dry_run": True} if looks else {}
            done = page.perform(request, form.reason, **form.values(), **preview)
            if operation.dry_run and not looks and not done.changed:
                raise TransitionRefused(f"Nothing was changed. {done.message}")
        except DurableTasksError as refused:
            refuse(form, refused)
        else:
            if not looks:
                if done.changed:
                    page.remember(request, operation.title, done.message, form.reason)
                text: Any = done.message
                if isinstance(done.value, Task):
                    link = display.row_link("task", done.value.pk)
                    text = format_html("Created task {}.", link)
                # The name does not come first: the templates of the admin capitalize the first
                # letter.
                text = format_html("{}: {}", page.label, text) if page.label else text
                level = messages.SUCCESS if done.changed else messages.WARNING
                model_admin.message_user(request, text, level)
                return HttpResponseRedirect(page.back)
            report = page.report(done.value) if page.report else None
    response: HttpResponse = model_admin.page(
        request, "operation", page.title, pending=page, form=form, look=LOOK, report=report
    )
    return response


def _respond_with_preview(
    model_admin: Any, request: HttpRequest, page: OperationPage
) -> HttpResponse:
    """Show what the operation would change. If the form of that page was posted, perform it and
    show what it has changed.

    Both are the same call of the engine, with or without ``dry_run``. If rows change between the
    two, the second page shows the actual changes and reports the difference. A dry run performs the
    operation and rolls it back, which locks rows. Therefore it requires a POST request; a GET
    request shows a button for it.
    """

    def show(**more: Any) -> HttpResponse:
        names = {"pending": page, "do": DO, "file": FILE, "seen_name": SEEN}
        response: HttpResponse = model_admin.page(
            request, "graph/preview", page.title, **names, **more
        )
        return response

    if request.method != "POST":
        return show(asking=True)
    confirmed = DO in request.POST
    form = form_class(page.operation, ())(request.POST if confirmed else None)
    if confirmed and form.is_valid():
        try:
            report: GraphReport = page.perform(request, form.reason, dry_run=False).value
        except DurableTasksError as refused:
            form.add_error(None, f"Nothing was changed. {refused}")
        else:
            if report.total:
                page.remember(request, page.title, summed_up(report), form.reason)
            differs = request.POST.get(SEEN, "") != digest(report)
            return show(done=True, other=differs, reason=form.reason, **changes(report))
    try:
        report = page.perform(request, "", dry_run=True).value
    except DurableTasksError as refused:
        return show(problem=str(refused), form=form)
    if FILE in request.POST:
        return _file(report)
    return show(form=form, seen=digest(report), **changes(report))


# The report of an operation on dependent tasks.


def digest(report: GraphReport) -> str:
    """Return a hash of the changes, to compare them with the displayed ones."""
    lines = sorted(f"{change.task_id} {change.before} {change.after}" for change in report.changes)
    stopping = sorted(str(key) for key in report.stop_requested)
    return hashlib.sha256("\n".join([*lines, *stopping]).encode()).hexdigest()[:16]


def changes(report: GraphReport) -> dict[str, Any]:
    """Return the context of a report: its totals, and the first SHOWN changes."""
    changed = {change.task_id for change in report.changes}
    stopping = [key for key in report.stop_requested if key not in changed]
    tasks = display.named_tasks(stopping[:SHOWN])
    moves = [
        (
            change.task_id,
            change.step or change.name,
            change.name if change.step else "",
            change.before,
            change.after,
        )
        for change in report.changes
    ]
    for key in stopping:
        title = display.task_title(tasks[key]) if key in tasks else display.short(key)
        moves.append((key, title, "", "RUNNING", ""))
    reasons = {change.task_id: display.clean(change.reason) for change in report.changes[:SHOWN]}
    sums = Counter((before, after) for *_task, before, after in moves)
    return {
        "lines": [
            {
                "link": display.row_link("task", key, title),
                "name": name,
                "before": display.badge(before, before),
                "after": _after(after, stops=key in report.stop_requested),
                "why": reasons.get(key, ""),
            }
            for key, title, name, before, after in moves[:SHOWN]
        ],
        "number": len(moves),
        "unshown": max(0, len(moves) - SHOWN),
        "sums": [
            {
                "before": display.badge(before, before),
                "after": _after(after, stops=not after),
                "number": number,
            }
            for (before, after), number in sums.most_common()
        ],
    }


def _after(status: str, *, stops: bool) -> SafeString | str:
    """Return the status that a task has then, and whether it is requested to stop."""
    marks = [(status, status)] if status else []
    return display.badges([*marks, *([("stop-requested", "stop requested")] if stops else [])])


def summed_up(report: GraphReport) -> str:
    """Return a sentence about the changes, for messages and histories."""
    number = len(report.changes)
    moves = Counter(
        f"{change.before} → {change.after}"
        if change.before != change.after
        else f"stays {change.after}"
        for change in report.changes
    )
    counts = ", ".join(f"{count:,} {move}" for move, count in moves.most_common())
    changed = f"{number:,} {ngettext('row', 'rows', number)} changed"
    text = f"{changed}: {counts}." if counts else f"{changed}."
    stopping = len(set(report.stop_requested) - {change.task_id for change in report.changes})
    if stopping:
        tasks = ngettext("task", "tasks", stopping)
        text = f"{text} Requested {stopping} running {tasks} to stop."
    return text


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
    return JsonResponse(
        {"changes": rows, "stop_requested": [str(key) for key in report.stop_requested]},
        headers={
            "Content-Disposition": 'attachment; filename="changes.json"',
            "Cache-Control": "no-store",
        },
        json_dumps_params={"indent": 1},
    )
