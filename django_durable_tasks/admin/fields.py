"""Fields of our forms: JSON of one kind, an instant in a schedule's zone; and whose field a refusal
speaks of.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext as _

from django_durable_tasks.rules.recurring.timetables import zones


class JsonField(forms.CharField):
    """A JSON text of one kind; returns the value."""

    widget = forms.Textarea

    def __init__(self, kind: type, *, rows: int = 6, **options: Any) -> None:
        self.kind = kind
        super().__init__(
            required=False,
            widget=forms.Textarea(attrs={"rows": rows, "cols": 80, "spellcheck": "false"}),
            **options,
        )

    def clean(self, value: Any) -> Any:
        """Return the value; refuses what is not JSON, or of another kind."""
        text = super().clean(value)
        try:
            found = json.loads(text or ("[]" if self.kind is list else "{}"))
        except RecursionError:
            raise forms.ValidationError(_("This is nested too deep.")) from None
        except ValueError as error:
            raise forms.ValidationError(_("This is not JSON: %s") % error) from None
        if not isinstance(found, self.kind):
            wanted = _("a list: [1, 2]") if self.kind is list else _('an object: {"name": 1}')
            raise forms.ValidationError(_("Give %s") % wanted)
        return found


class InstantField(forms.CharField):
    """An instant: a wall time of a zone, or one that says its offset itself; returns an aware
    datetime.

    A wall time that the zone shows twice, or never, must say its offset.
    """

    def __init__(self, **options: Any) -> None:
        self.zone: str | None = None
        widget = forms.TextInput(
            attrs={"placeholder": "2026-03-08 02:30", "autocomplete": "off", "spellcheck": "false"}
        )
        super().__init__(max_length=40, widget=widget, **options)

    def clean(self, value: Any) -> datetime | None:
        """Return the aware datetime, None for an empty field."""
        text = super().clean(value)
        if not text:
            return None
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            told = _(
                "Give a time as 2026-03-08 02:30, or with its offset as 2026-03-08T02:30:00-05:00."
            )
            raise forms.ValidationError(told) from None
        return found if found.tzinfo is not None else self._in_zone(found)

    def _in_zone(self, wall: datetime) -> datetime:
        zone = zones.zone(self.zone) if self.zone else timezone.get_current_timezone()
        first, second = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
        before, after = (one.utcoffset() or timedelta() for one in (first, second))
        if before == after:
            return first
        told = (
            _("The clocks of %(zone)s show this time twice: say which, as %(first)s or %(second)s.")
            if before > after
            else _(
                "The clocks of %(zone)s jump over this time: say what you mean, as %(first)s or"
                " %(second)s."
            )
        )
        raise forms.ValidationError(
            told
            % {"zone": self.zone or zone, "first": first.isoformat(), "second": second.isoformat()}
        )


def in_zone(form: forms.Form, zone: str | None) -> None:
    """Let the form's instants be wall times of this zone; None is the site's own."""
    for field in form.fields.values():
        if isinstance(field, InstantField):
            field.zone = zone


def refuse(form: forms.Form, refused: Exception) -> None:
    """Put a refusal beside the field that it names first (``pace='x': give …``), else above all."""
    name = str(refused).partition("=")[0].strip()
    form.add_error(name if name in form.fields else None, str(refused))
