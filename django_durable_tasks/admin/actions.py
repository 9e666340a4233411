"""How an action runs: whose rows, asked once more where it destroys, one call of the lifecycle, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
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
    """One action: which rows it may move, the one call that moves them, and what is asked before."""

    title: Any
    movable: Q
    do: Do
    warning: Any = ""
    form: type[forms.Form] = OptionalReasonForm


@dataclass(frozen=True, slots=True)
class _Chosen:
    keys: list[Any]
    alone: int
    more: bool


def who(request: HttpRequest) -> str:
    """Return the name that the rows remember."""
    return request.user.get_username()


def run(screen: Any, request: HttpRequest, rows: QuerySet[Any], verb: Verb) -> HttpResponse | None:
    """Do it with the chosen rows, at most AT_MOST; where the verb has a warning, only when that was confirmed."""
    chosen = _chosen(rows, verb.movable)
    if not verb.warning:
        return _act(screen, request, chosen, verb, "")
    confirmed = CONFIRMED in request.POST
    form = verb.form(request.POST if confirmed else None)
    if confirmed and form.is_valid():
        return _act(screen, request, chosen, verb, form.cleaned_data["reason"])
    return _ask(screen, request, chosen, verb, form)


def _chosen(rows: QuerySet[Any], movable: Q) -> _Chosen:
    keys = list(rows.filter(movable).values_list("pk", flat=True)[: AT_MOST + 1])
    alone = rows.exclude(movable).order_by()[:AT_MOST].count()
    return _Chosen(keys[:AT_MOST], alone, len(keys) > AT_MOST)


def _ask(screen: Any, request: HttpRequest, chosen: _Chosen, verb: Verb, form: forms.Form) -> HttpResponse:
    from_page = request.POST.get(FROM_PAGE, "")
    context = {
        **screen.admin_site.each_context(request), "opts": screen.opts, "media": screen.media, "form": form,
        "title": verb.title, "warning": verb.warning, "number": len(chosen.keys), "alone": chosen.alone,
        "more": chosen.more, "shown": screen.get_queryset(request).filter(pk__in=chosen.keys[:20]),
        "unshown": max(0, len(chosen.keys) - 20), "action": request.POST.get("action"),
        "checkbox": ACTION_CHECKBOX_NAME, "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "across": request.POST.get("select_across", "0"), "confirmed": CONFIRMED, "from_page_name": FROM_PAGE,
        "from_page": from_page, "back": _back(screen, request),
    }  # fmt: skip
    return TemplateResponse(request, "admin/django_durable_tasks/confirm.html", context)


def _act(screen: Any, request: HttpRequest, chosen: _Chosen, verb: Verb, reason: str) -> HttpResponse:
    try:
        moved, told = verb.do(chosen.keys, who(request), reason)
    except DurableTasksError as refused:
        screen.message_user(request, _("Nothing was changed. %s") % refused, messages.ERROR)
        return HttpResponseRedirect(_back(screen, request))
    if moved:
        remember(screen, request, chosen.keys, f"{verb.title}. {told} {reason}".strip())
    alone = len(chosen.keys) - moved + chosen.alone
    left = ngettext("%d row was left alone.", "%d rows were left alone.", alone) % alone if alone else ""
    more = _("More rows match: run the action again for the rest.") if chosen.more else ""
    said = " ".join(part for part in (told, left, more) if part)
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
