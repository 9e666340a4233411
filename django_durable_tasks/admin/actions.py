"""The admin actions of the operations on selected rows: the confirmation page, one call, and a
message about the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core import signing
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_durable_tasks.admin.display import page_of
from django_durable_tasks.admin.operation_form import reason_form
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.operations.operation import Operation

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
        "left_out": operation.left_out(chosen.left_out) if chosen.left_out else "",
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
        screen.message_user(request, _("Nothing was changed. %s") % refused, messages.ERROR)
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
        operation.left_out(chosen.left_out) if chosen.left_out else "",
        _("More rows match: run the action again for the rest.") if chosen.more else "",
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
