"""How an action runs: whose rows, asked once more where it matters, one call of the lifecycle, and what came of it."""

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
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_durable_tasks.admin.display import page_of
from django_durable_tasks.exceptions import DurableTasksError

AT_MOST = 1_000
"""How many rows one action moves; of more it moves the first and says so."""

CONFIRMED = "durable_confirmed"
ROWS = "durable_rows"
_SALT = "django_durable_tasks.admin.actions"
_GROUPS = 10
FROM_PAGE = "durable_from_page"


class OptionalReasonForm(forms.Form):
    """Why; it is kept with the row."""

    reason = forms.CharField(
        max_length=150, required=False, help_text=gettext_lazy("Kept beside your name, for whoever asks later.")
    )


class NeededReasonForm(forms.Form):
    """Why; without it nobody knows next week."""

    reason = forms.CharField(max_length=150, help_text=gettext_lazy("Kept beside your name, for whoever asks later."))


Do = Callable[[list[Any], str, str], tuple[int, str]]
"""Moves the rows of these keys, by whom, why; returns how many moved and a sentence about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One action: which rows it may move, the one call that moves them, and what is asked before.

    ``deliberate`` rows are moved only if they were chosen one by one, not with a whole list; ``left_out`` says how many
    were not. The page that asks counts the rows by the columns of ``grouped_by``.
    """

    title: Any
    movable: Q
    do: Do
    warning: Any = ""
    form: type[forms.Form] = OptionalReasonForm
    deliberate: Q | None = None
    left_out: Callable[[int], str] = str
    grouped_by: tuple[str, ...] = ()


def title_of(action: Any) -> str:
    """Return the title of what `ModelAdmin.get_actions` holds: an Action from Django 6.1 on, a tuple before."""
    return str(action[2] if isinstance(action, tuple) else action.description)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The rows of one action: those that it moves, and how many of the choice it does not.

    ``alone``: their state does not allow it; ``left_out``: of a state that ``deliberate`` names, and not chosen one by
    one; ``gone``: they have left their state since they were shown.
    """

    keys: list[str]
    deliberate: list[str]
    alone: int
    left_out: int
    more: bool
    gone: int = 0


def who(request: HttpRequest) -> str:
    """Return the name that the rows remember."""
    return request.user.get_username()


def run(screen: Any, request: HttpRequest, rows: QuerySet[Any], verb: Verb) -> HttpResponse | None:
    """Do it with the chosen rows, at most AT_MOST; where the verb has a warning, only with those that it was shown for.

    The page that asks carries the ids of its rows, signed. The confirmed action moves no others, whatever matches by
    then, and reports those that have left their state.
    """
    shown = _shown(screen, request) if CONFIRMED in request.POST else None
    if shown is not None:
        form = verb.form(request.POST)
        if not form.is_valid():
            return _ask(screen, request, shown, verb, form)
        return _act(screen, request, _still(screen, request, shown, verb), verb, form.cleaned_data["reason"])
    chosen = _chosen(rows, verb, across=_across(request))
    return _ask(screen, request, chosen, verb, verb.form()) if verb.warning else _act(screen, request, chosen, verb, "")


def _across(request: HttpRequest) -> bool:
    """Return whether the whole list was chosen, as Django reads it."""
    return bool(forms.BooleanField().to_python(request.POST.get("select_across", "0")))


def _chosen(rows: QuerySet[Any], verb: Verb, *, across: bool) -> _Chosen:
    left_out = 0
    if across and verb.deliberate is not None:
        left_out = rows.filter(verb.deliberate).order_by()[:AT_MOST].count()
        rows = rows.exclude(verb.deliberate)
    keys = [str(key) for key in rows.filter(verb.movable).values_list("pk", flat=True)[: AT_MOST + 1]]
    deliberate = [] if across else _deliberate(rows, keys[:AT_MOST], verb)
    alone = rows.exclude(verb.movable).order_by()[:AT_MOST].count()
    return _Chosen(keys[:AT_MOST], deliberate, alone, left_out, len(keys) > AT_MOST)


def _deliberate(rows: QuerySet[Any], keys: list[str], verb: Verb) -> list[str]:
    if verb.deliberate is None:
        return []
    return [str(key) for key in rows.filter(verb.deliberate, pk__in=keys).order_by().values_list("pk", flat=True)]


def _snapshot(screen: Any, request: HttpRequest, chosen: _Chosen) -> str:
    return signing.dumps([*_asked(screen, request), asdict(chosen)], salt=_SALT, compress=True)


def _asked(screen: Any, request: HttpRequest) -> list[str]:
    """Return what a snapshot is of: the table, the action, and who was asked."""
    return [screen.opts.label, request.POST.get("action", ""), str(request.user.pk)]


def _shown(screen: Any, request: HttpRequest) -> _Chosen | None:
    """Return the rows that the page of this confirmation showed; None: it carries none, or those of another page."""
    try:
        *asked, chosen = signing.loads(request.POST.get(ROWS, ""), salt=_SALT)
    except signing.BadSignature:
        return None
    return _Chosen(**chosen) if asked == _asked(screen, request) else None


def _still(screen: Any, request: HttpRequest, shown: _Chosen, verb: Verb) -> _Chosen:
    """Return what is left of the rows that were shown."""
    rows = screen.get_queryset(request).filter(verb.movable, pk__in=shown.keys)
    if verb.deliberate is not None:
        rows = rows.exclude(verb.deliberate & ~Q(pk__in=shown.deliberate))
    keys = [str(key) for key in rows.values_list("pk", flat=True)]
    return replace(shown, keys=keys, gone=len(shown.keys) - len(keys))


def _ask(screen: Any, request: HttpRequest, chosen: _Chosen, verb: Verb, form: forms.Form) -> HttpResponse:
    rows = screen.get_queryset(request).filter(pk__in=chosen.keys)
    context = {
        **screen.admin_site.each_context(request), "opts": screen.opts, "media": screen.media, "form": form,
        "title": verb.title, "warning": verb.warning, "number": len(chosen.keys), "alone": chosen.alone,
        "left_out": verb.left_out(chosen.left_out) if chosen.left_out else "", "more": chosen.more,
        "groups": _groups(rows, verb), "shown": rows.filter(pk__in=chosen.keys[:20]),
        "unshown": max(0, len(chosen.keys) - 20), "action": request.POST.get("action"),
        "checkbox": ACTION_CHECKBOX_NAME, "selected": request.POST.getlist(ACTION_CHECKBOX_NAME)[:1],
        "rows": ROWS, "snapshot": _snapshot(screen, request, chosen), "confirmed": CONFIRMED,
        "from_page_name": FROM_PAGE, "from_page": request.POST.get(FROM_PAGE, ""), "back": _back(screen, request),
    }  # fmt: skip
    return TemplateResponse(request, "admin/django_durable_tasks/confirm.html", context)


def _groups(rows: QuerySet[Any], verb: Verb) -> list[tuple[int, str]]:
    """Return how many of the rows are of which kind, the most frequent first."""
    if not verb.grouped_by:
        return []
    kinds = Counter(" ".join(map(str, kind)) for kind in rows.order_by().values_list(*verb.grouped_by))
    return [(number, kind) for kind, number in kinds.most_common(_GROUPS)]


def _act(screen: Any, request: HttpRequest, chosen: _Chosen, verb: Verb, reason: str) -> HttpResponse:
    try:
        moved, told = verb.do(chosen.keys, who(request), reason)
    except DurableTasksError as refused:
        screen.message_user(request, _("Nothing was changed. %s") % refused, messages.ERROR)
        return HttpResponseRedirect(_back(screen, request))
    if moved:
        remember(screen, request, chosen.keys, f"{verb.title}. {told} {reason}".strip())
    gone = len(chosen.keys) - moved + chosen.gone
    parts = (
        told,
        ngettext("%d row had changed meanwhile and was left alone.", "%d rows had changed meanwhile and were left "
                 "alone.", gone) % gone if gone else "",
        ngettext("%d row was left alone.", "%d rows were left alone.", chosen.alone) % chosen.alone
        if chosen.alone else "",
        verb.left_out(chosen.left_out) if chosen.left_out else "",
        _("More rows match: run the action again for the rest.") if chosen.more else "",
    )  # fmt: skip
    said = " ".join(part for part in parts if part)
    screen.message_user(request, said, messages.SUCCESS if moved else messages.WARNING)
    return HttpResponseRedirect(_back(screen, request))


def remember(screen: Any, request: HttpRequest, keys: list[Any], message: str) -> None:
    """Write into the history of each row who did what."""
    rows = screen.model.objects.using(screen.get_queryset(request).db).filter(pk__in=keys)
    LogEntry.objects.log_actions(int(request.user.pk or 0), rows.only("pk", *screen.named_by), CHANGE, message)


def _back(screen: Any, request: HttpRequest) -> str:
    """Return the page of the one row that the action came from, else the list as it was filtered."""
    selected = request.POST.getlist(ACTION_CHECKBOX_NAME)
    if request.POST.get(FROM_PAGE) and len(selected) == 1:
        return page_of(screen.opts.model_name, selected[0])
    return request.get_full_path()
