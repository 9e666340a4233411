"""The pages on which an operator says a verb to one schedule: what it means, what it asks, and the one call."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, strip_tags
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_durable_tasks.admin import actions, display, fires, recurring_forms
from django_durable_tasks.admin.fields import in_zone, refuse
from django_durable_tasks.exceptions import DurableTasksError, TransitionRefused
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.rules.recurring import RecurringStatus

Given = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb: what stands on its button and its page, whom it fits, and the one call; the call returns a sentence."""

    title: Any
    warning: Any
    form: type[forms.Form]
    do: Callable[[RecurringTask, Given, str], str]
    permission: str = "pause"
    fits: frozenset[str] = frozenset({RecurringStatus.ACTIVE, RecurringStatus.PAUSED})
    look: Callable[[RecurringTask, Given, str], Any] | None = None
    """Tells what the call would do, and writes nothing."""
    button: bool = True


def _pause(row: RecurringTask, given: Given, by: str) -> str:
    row.pause(given["reason"], until=given["until"], by=by)
    if given["until"]:
        return _("It is paused until %s, and goes on by itself.") % display.instant(given["until"])
    return _("It is paused: nothing fires until it is resumed.")


def _snooze(row: RecurringTask, given: Given, by: str) -> str:
    row.snooze(given["until"], by=by)
    return _("It lets the fire times up to %s pass, and goes on by itself.") % display.instant(given["until"])


def _resume(row: RecurringTask, given: Given, by: str) -> str:
    row.resume(by=by, run_missed=given["run_missed"], pace=given["pace"])
    caught = _("What the pause held back is caught up.") if given["run_missed"] else ""
    return f"{_('It fires again from now on.')} {caught}".strip()


def _cancel(row: RecurringTask, given: Given, by: str) -> str:
    row.cancel(given["reason"], by=by)
    return _("It has ended for good.")


def _trigger(row: RecurringTask, given: Given, by: str) -> str:
    task: Task = row.trigger_now(request_id=given["request_id"], by=by)
    return format_html(_("Created task {}."), display.link(display.page_of("task", task.pk), task.pk))


def _backfill(row: RecurringTask, given: Given, by: str) -> str:
    done = row.backfill(**given, by=by)
    created = ngettext("Created %d task", "Created %d tasks", done.born) % done.born
    replayed = ngettext("replayed %d task", "replayed %d tasks", done.replayed) % done.replayed
    left = ngettext("left %d fire time as it is", "left %d fire times as they are", done.left) % done.left
    told = f"{created}, {replayed}, {left}. {done.remark}".strip()
    if not (done.born or done.replayed):
        raise TransitionRefused(_("Nothing was changed. %s") % told)
    return told


def _what_backfill_does(row: RecurringTask, given: Given, by: str) -> dict[str, Any]:
    told = row.backfill(**given, by=by, dry_run=True)
    steps = [
        {
            "at": fires.local_of(step.fire_time, row.time_zone),
            "deed": display.badge(f"deed-{step.deed}", step.deed),
            "why": step.why,
        }
        for step in told.steps
    ]
    return {"steps": steps, "remark": told.remark}


def _override(row: RecurringTask, given: Given, by: str) -> str:
    moved = {"move_to": given["move_to"]} if given["move_to"] else {}
    row.override(given["fire_time"], given["action"], reason=given["reason"], by=by, **moved)
    return _("%(action)s: decided for the fire time %(at)s.") % {
        "action": given["action"],
        "at": display.instant(given["fire_time"]),
    }


def _withdraw(row: RecurringTask, given: Given, by: str) -> str:
    if row.withdraw(given["fire_time"]):
        return _("Override removed: %s follows the schedule again.") % display.instant(given["fire_time"])
    return _("There was no override of %s.") % display.instant(given["fire_time"])


VERBS = {
    "pause": Verb(
        title=gettext_lazy("Pause"), form=recurring_forms.PauseForm, do=_pause,
        warning=gettext_lazy("It fires nothing; what passes meanwhile is told in the ledger as PAUSED. Open tasks go "
                             "on."),
    ),
    "resume": Verb(
        title=gettext_lazy("Resume"), form=recurring_forms.ResumeForm, do=_resume,
        fits=frozenset({RecurringStatus.PAUSED}),
        warning=gettext_lazy("It fires again from now on. Nothing of the past fires, unless you ask for what the pause "
                             "held back."),
    ),
    "snooze": Verb(
        title=gettext_lazy("Snooze"), form=recurring_forms.SnoozeForm, do=_snooze,
        fits=frozenset({RecurringStatus.ACTIVE}),
        warning=gettext_lazy("The fire times up to the instant pass, told as PAUSED; then it goes on by itself."),
    ),
    "trigger": Verb(
        title=gettext_lazy("Trigger now"), form=recurring_forms.TriggerForm, do=_trigger, permission="trigger",
        warning=gettext_lazy("It runs once, beside the timetable: told as MANUAL, not counted as one of max_runs, and "
                             "the next fire time stays."),
    ),
    "override": Verb(
        title=gettext_lazy("Override a fire time"), form=recurring_forms.OverrideForm, do=_override,
        warning=gettext_lazy("Skip one fire time, move it, or add one that the timetable does not have."),
    ),
    "backfill": Verb(
        title=gettext_lazy("Backfill"), form=recurring_forms.BackfillForm, do=_backfill, look=_what_backfill_does,
        permission="trigger",
        warning=gettext_lazy("Runs fire times of the past that have no run. A fire time that ran is never doubled; "
                             "the timetable goes on beside it."),
    ),
    "withdraw": Verb(
        title=gettext_lazy("Take an override back"), form=recurring_forms.WithdrawForm, do=_withdraw, button=False,
        warning=gettext_lazy("The fire time follows the schedule again."),
    ),
    "cancel": Verb(
        title=gettext_lazy("End for good"), form=recurring_forms.ReasonForm, do=_cancel,
        warning=gettext_lazy("It never fires again and cannot be resumed. Open tasks go on; the ledger stays."),
    ),
}  # fmt: skip


def buttons(screen: Any, request: HttpRequest, row: RecurringTask) -> list[dict[str, Any]]:
    """Return the buttons of the verbs that fit this row and that this person may say."""
    return [
        {"url": address(row, name), "title": f"{verb.title}…"}
        for name, verb in VERBS.items()
        if verb.button and row.status in verb.fits and _may(screen, request, verb)
    ]


def address(row: RecurringTask, name: str) -> str:
    """Return the address of the page of a verb."""
    return reverse("admin:django_durable_tasks_recurringtask_do", args=[row.pk, name])


def _may(screen: Any, request: HttpRequest, verb: Verb) -> bool:
    permitted = getattr(screen, f"has_{verb.permission}_permission")(request)
    return bool(permitted and screen.has_view_permission(request))


def _found(screen: Any, request: HttpRequest, object_id: uuid.UUID, verb: Verb) -> RecurringTask:
    row: RecurringTask | None = screen.get_queryset(request).filter(pk=object_id, status__in=verb.fits).first()
    if row is None:
        raise Http404(_("No schedule has this id, or its status does not allow this."))
    return row


def _said(screen: Any, request: HttpRequest, row: RecurringTask, verb: Verb, form: forms.Form) -> bool:
    """Say the verb; False when it was refused, which the form tells."""
    try:
        told = verb.do(row, form.cleaned_data, actions.who(request))
    except DurableTasksError as refused:
        refuse(form, refused)
        return False
    reason = form.cleaned_data.get("reason", "")
    actions.remember(screen, request, [row.pk], f"{verb.title}. {strip_tags(told)} {reason}".strip())
    # The name does not come first: the admin's templates capitalize the first letter of a message.
    screen.message_user(request, format_html(_("Schedule {name}: {told}"), name=row.name, told=told))
    return True


def _seen(request: HttpRequest, row: RecurringTask, verb: Verb, form: forms.Form) -> Any:
    """Return what the call would do; None when it was refused, which the form tells."""
    if verb.look is None:
        return None
    try:
        return verb.look(row, form.cleaned_data, actions.who(request))
    except DurableTasksError as refused:
        refuse(form, refused)
        return None


def view_for(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view, inside the site of this screen."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        verb = VERBS.get(name)
        if verb is None:
            raise Http404(_("There is no such verb."))
        if not _may(screen, request, verb):
            raise PermissionDenied
        row = _found(screen, request, object_id, verb)
        posted = request.method == "POST"
        form = verb.form(request.POST if posted else None, initial=_initial(request))
        in_zone(form, row.time_zone)
        report = None
        if posted and form.is_valid():
            if "_look" in request.POST:
                report = _seen(request, row, verb, form)
            elif _said(screen, request, row, verb, form):
                return HttpResponseRedirect(display.page_of("recurringtask", row.pk))
        context = {**screen.admin_site.each_context(request), "opts": screen.opts, "media": screen.media, "form": form,
                   "row": row, "verb": verb, "looks": verb.look is not None, "report": report,
                   "title": _("%(verb)s: %(name)s") % {"verb": verb.title, "name": row.name},
                   "back": display.page_of("recurringtask", row.pk)}  # fmt: skip
        return TemplateResponse(request, "admin/django_durable_tasks/recurringtask/verb.html", context)

    return view


def _initial(request: HttpRequest) -> dict[str, Any]:
    """Return what the address fills in, so that a fire time of a table is one click away."""
    return {"request_id": uuid.uuid4(), **{name: request.GET[name] for name in ("fire_time", "action", "start", "end")
                                           if name in request.GET}}  # fmt: skip
