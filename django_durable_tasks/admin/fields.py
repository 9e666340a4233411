"""Form fields: JSON of one type, and an instant in a schedule's zone; and the assignment of errors
to fields.
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
    """A JSON text of one type; returns the value."""

    widget = forms.Textarea

    def __init__(self, kind: type, *, rows: int = 6, **options: Any) -> None:
        self.kind = kind
        super().__init__(
            required=False,
            widget=forms.Textarea(attrs={"rows": rows, "cols": 80, "spellcheck": "false"}),
            **options,
        )

    def clean(self, value: Any) -> Any:
        """Return the value; refuses invalid JSON, and a value of another type."""
        text = super().clean(value)
        try:
            found = json.loads(text or ("[]" if self.kind is list else "{}"))
        except RecursionError:
            raise forms.ValidationError(_("This is nested too deep.")) from None
        except ValueError as error:
            raise forms.ValidationError(_("This is not JSON: %s") % error) from None
        if not isinstance(found, self.kind):
            expected = _("a list: [1, 2]") if self.kind is list else _('an object: {"name": 1}')
            raise forms.ValidationError(_("Give %s") % expected)
        return found


class InstantField(forms.CharField):
    """An instant: a wall time of a zone, or a time with its offset; returns an aware datetime.

    A wall time that is repeated or missing in the zone requires an offset.
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
            message = _(
                "Give a time as 2026-03-08 02:30, or with its offset as 2026-03-08T02:30:00-05:00."
            )
            raise forms.ValidationError(message) from None
        return found if found.tzinfo is not None else self._in_zone(found)

    def _in_zone(self, wall: datetime) -> datetime:
        zone = zones.zone(self.zone) if self.zone else timezone.get_current_timezone()
        first, second = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
        before, after = (one.utcoffset() or timedelta() for one in (first, second))
        if before == after:
            return first
        message = (
            _("This time occurs twice in %(zone)s. Enter %(first)s or %(second)s.")
            if before > after
            else _("This time does not exist in %(zone)s. Enter %(first)s or %(second)s.")
        )
        raise forms.ValidationError(
            message
            % {"zone": self.zone or zone, "first": first.isoformat(), "second": second.isoformat()}
        )


def in_zone(form: forms.Form, zone: str | None) -> None:
    """Interpret the instants of the form as wall times of this zone; None is the site's
    time zone.
    """
    for field in form.fields.values():
        if isinstance(field, InstantField):
            field.zone = zone


def refuse(form: forms.Form, refused: Exception) -> None:
    """Add an error to the field that its text names first (``pace='x': give …``), otherwise to the
    form.
    """
    name = str(refused).partition("=")[0].strip()
    form.add_error(name if name in form.fields else None, str(refused))
