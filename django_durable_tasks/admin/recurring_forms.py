"""What the verbs of one schedule ask."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_durable_tasks.admin.fields import InstantField
from django_durable_tasks.rules.agenda import Action

_WHEN = gettext_lazy("A wall time of the schedule's zone, or a time with its offset.")
_KEPT = gettext_lazy("Kept beside your name, for whoever asks later.")


class ReasonForm(forms.Form):
    """Why; without it nobody knows next week."""

    reason = forms.CharField(max_length=150, help_text=_KEPT)


class PauseForm(ReasonForm):
    """Why, and until when."""

    until = InstantField(
        required=False, help_text=gettext_lazy("Empty: until somebody resumes it. A wall time of the schedule's zone.")
    )


class SnoozeForm(forms.Form):
    """Until when."""

    until = InstantField(help_text=_WHEN)


class ResumeForm(forms.Form):
    """With what the pause held back or without, and how fast."""

    run_missed = forms.BooleanField(
        required=False, label=gettext_lazy("Catch up"),
        help_text=gettext_lazy("Run what the pause held back, by the schedule's own catch-up mode and bounds."),
    )  # fmt: skip
    pace = forms.FloatField(
        required=False, min_value=0,
        help_text=gettext_lazy("Seconds between two runs that are caught up; empty: as it stands."),
    )  # fmt: skip


class TriggerForm(forms.Form):
    """Nothing but the request's own id, so that a doubled click runs once."""

    request_id = forms.CharField(max_length=200, widget=forms.HiddenInput)


class BackfillForm(forms.Form):
    """Which stretch, what becomes of fire times that ran, and how many at a time."""

    start = InstantField(help_text=_WHEN)
    end = InstantField(
        help_text=gettext_lazy("Included. A wall time of the schedule's zone, or a time with its offset.")
    )
    reprocess = forms.ChoiceField(
        choices=[("NONE", gettext_lazy("leave them alone")), ("FAILED", gettext_lazy("replay the failed ones")),
                 ("ALL", gettext_lazy("replay all that have ended"))],
        label=gettext_lazy("Fire times that ran"),
    )  # fmt: skip
    concurrency = forms.IntegerField(min_value=1, initial=1, help_text=gettext_lazy("How many run at a time."))


class WithdrawForm(forms.Form):
    """Which fire time."""

    fire_time = InstantField(help_text=_WHEN)


class OverrideForm(forms.Form):
    """One fire time, and what becomes of it."""

    fire_time = InstantField(help_text=_WHEN)
    action = forms.ChoiceField(choices=[(action.value, action.value) for action in Action])
    move_to = InstantField(required=False, help_text=gettext_lazy("With MOVE: where to."))
    reason = forms.CharField(max_length=150, help_text=_KEPT)

    def clean(self) -> dict[str, Any]:
        """Refuse a move to nowhere, and a place for what does not move."""
        given = super().clean() or {}
        if (given.get("action") == Action.MOVE) != bool(given.get("move_to")) and "move_to" not in self.errors:
            self.add_error("move_to", _("Give it with MOVE, and with nothing else."))
        return given
