"""Form fields of the admin, and optimistic locking of its edit forms."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from difflib import ndiff
from typing import TYPE_CHECKING, Any, cast

from django import forms
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core import signing
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model, QuerySet
from django.http import QueryDict
from django.utils import timezone
from django.utils.functional import cached_property

from django_durable_tasks.admin.display import instant
from django_durable_tasks.admin.filters import is_default_only
from django_durable_tasks.exceptions import DurableTasksError, InvalidArguments
from django_durable_tasks.models import DEFAULT_TENANT_ID, Tenant
from django_durable_tasks.schedules.timetables import zones
from django_durable_tasks.store.clock import host_now

# Form fields: JSON of one type, and an instant in a schedule's zone; and the assignment of errors
# to fields.


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
            data = json.loads(text or ("[]" if self.kind is list else "{}"))
        except RecursionError:
            raise forms.ValidationError("This is nested too deep.") from None
        except ValueError as error:
            raise forms.ValidationError(f"This is not JSON: {error}") from None
        if not isinstance(data, self.kind):
            expected = "a list: [1, 2]" if self.kind is list else 'an object: {"name": 1}'
            raise forms.ValidationError(f"Give {expected}")
        return data


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
            moment = datetime.fromisoformat(text)
        except ValueError:
            message = (
                "Give a time as 2026-03-08 02:30, or with its offset as 2026-03-08T02:30:00-05:00."
            )
            raise forms.ValidationError(message) from None
        if moment.tzinfo is not None:
            return moment
        zone = zones.zone(self.zone) if self.zone else timezone.get_current_timezone()
        return _of_wall_time(moment, zone)


class SplitInstantField(forms.SplitDateTimeField):
    """An instant of a stock admin form: date and time as wall time of the site's zone; returns an
    aware datetime, also with ``USE_TZ = False``.
    """

    def prepare_value(self, value: Any) -> Any:
        """Return the wall time of an instant."""
        if isinstance(value, datetime) and timezone.is_aware(value):
            return timezone.make_naive(value)
        return super().prepare_value(value)

    def compress(self, data_list: Any) -> datetime | None:
        """Return the aware datetime, None for empty fields."""
        value = super().compress(data_list)
        if value is None or timezone.is_aware(value):
            return value
        return _of_wall_time(value, timezone.get_current_timezone())


def _of_wall_time(value: datetime, zone: tzinfo) -> datetime:
    """Return the instant of a wall time of this zone. Raises ValidationError if the time is
    repeated or missing in the zone.
    """
    first, second = (value.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    before, after = (moment.utcoffset() or timedelta() for moment in (first, second))
    if before == after:
        return first
    problem = "occurs twice" if before > after else "does not exist"
    raise forms.ValidationError(
        f"This time {problem} in {zone}. Enter {first.isoformat()} or {second.isoformat()}."
    )


def in_zone(form: forms.Form, zone: str | None) -> None:
    """Interpret the instants of the form as wall times of this zone; None is the site's
    time zone.
    """
    for field in form.fields.values():
        if isinstance(field, InstantField):
            field.zone = zone


def refuse(form: forms.Form, refused: DurableTasksError) -> None:
    """Add an error to the field of the option that was refused, otherwise to the form."""
    option = "args" if isinstance(refused, InvalidArguments) else refused.option
    form.add_error(option if option in form.fields else None, str(refused))


# Optimistic locking of edit forms: a form contains the signed values that it showed, which are
# compared with the present row.
#
# If the row has changed in between, nothing is saved. The errors name the user and the changed
# fields. Fields that the present user did not change show the present values, so that saving again
# overwrites nothing by accident.


if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[Any]
else:
    _ModelForm = forms.ModelForm

OPENED = "opened"
_SALT = "django_durable_tasks.admin.edit_conflicts"
# The characters of a value, the changed lines of a text, and the authors that an error names.
_SHOWN, _LINES, _ENTRIES = 200, 10, 5


class _OpenedField(forms.CharField):
    """The signed values that a form showed; never itself a change."""

    def __init__(self) -> None:
        super().__init__(required=False, max_length=4_000_000, widget=forms.HiddenInput)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class EditForm(forms.Form):
    """A form for one row; a subclass calls ``compare_with`` when its fields are complete."""

    opened = _OpenedField()
    row_compared: Model | None = None
    version = ""

    def compare_with(self, row: Model | None, version: object) -> None:
        """Sign what this form shows of the row. Each change of the row changes ``version`` (a
        revision or an epoch).
        """
        self.row_compared, self.version = row, str(version)
        if row is None:
            del self.fields[OPENED]
        else:
            self.initial[OPENED] = self._sealed(row)

    def clean(self) -> dict[str, Any]:
        """Refuse an edit of a row that changed after the form was opened."""
        cleaned: dict[str, Any] = super().clean() or {}
        if self.row_compared is not None:
            self._compare(self.row_compared)
        return cleaned

    @cached_property
    def changed_data(self) -> list[str]:
        """Return the names of the fields that were changed; differences in line endings, which
        browsers convert, do not count.
        """
        return [
            name
            for name in super().changed_data
            if self._differs(name, self[name].initial, self[name].data)
        ]

    def summary(self) -> str:
        """Return the history message: which fields were changed, or that the row was added."""
        if self.row_compared is None:
            return "Made."
        labels = ", ".join(str(self[name].label) for name in self.changed_data).lower()
        return f"Edited: {labels}." if labels else "Edited."

    def _differs(self, name: str, was: Any, submitted: Any) -> bool:
        return self.fields[name].has_changed(_with_line_feeds(was), _with_line_feeds(submitted))

    def _values(self) -> dict[str, Any]:
        names = [name for name in self.fields if name != OPENED]
        values = {name: self.get_initial_for_field(self.fields[name], name) for name in names}
        plain: dict[str, Any] = json.loads(json.dumps(values, cls=DjangoJSONEncoder, default=str))
        return plain

    def _sealed(self, row: Model) -> str:
        """Sign the row, its version, the values that the form shows, and the time."""
        payload = [str(row.pk), self.version, self._values(), host_now().isoformat()]
        return signing.dumps(payload, salt=_SALT, compress=True)

    def _compare(self, row: Model) -> None:
        try:
            sealed = str(self.data.get(self.add_prefix(OPENED), ""))
            key, version, values, at = signing.loads(sealed, salt=_SALT)
        except signing.BadSignature:
            key = None
        if key != str(row.pk):
            self.add_error(
                None,
                "Nothing was saved: this page does not say which state of the row it shows."
                " Open it again.",
            )
        elif version != self.version and (changed := self._changed(row, values)):
            opened_at = datetime.fromisoformat(at)
            # Without USE_TZ the history of Django has wall times of the project.
            if not settings.USE_TZ:
                opened_at = timezone.make_naive(opened_at, timezone.get_default_timezone())
            entries = LogEntry.objects.filter(
                content_type=ContentType.objects.get_for_model(type(row)),
                object_id=str(row.pk),
                action_time__gte=opened_at,
            )
            authors = [
                f"by {entry.user.get_username()} at {instant(entry.action_time)}"
                f" ({entry.get_change_message()})"
                for entry in entries.select_related("user").order_by("-action_time")[:_ENTRIES]
            ]
            by = "; ".join(authors) or "outside the admin: by code, settings or the command line"
            refusal = f"Nothing was saved: this was changed after you opened the page, {by}."
            advice = (
                "Fields that you did not change show the present values now. Check them and save"
                " again."
            )
            self.add_error(None, [refusal, *changed, advice])

    def _changed(self, row: Model, before: dict[str, Any]) -> list[str]:
        """Return a sentence for each field that changed, and show the new value in fields that this
        user did not change.
        """
        sentences, merged = list[str](), cast("QueryDict", self.data).copy()
        for name, now in self._values().items():
            field, was = self.fields[name], before.get(name)
            if was == now:
                continue
            key = self.add_prefix(name)
            submitted = field.widget.value_from_datadict(self.data, self.files, key)
            sentence = f"{self[name].label}: {_difference(was, now)}."
            if self._differs(name, was, submitted):
                sentence += f" Your value {_quoted(submitted)} is kept in the form."
            # Write the present value as a browser would send it.
            elif isinstance(now, list):
                merged.setlist(key, [str(item) for item in now])
            elif now is None or now is False:
                merged.pop(key, None)
            else:
                merged[key] = "on" if now is True else str(now)
            sentences.append(sentence)
        merged[self.add_prefix(OPENED)] = self._sealed(row)
        if sentences:
            self.data = merged
        return sentences


class NamedRowForm(EditForm):
    """The form of a row that its tenant and its name identify, which cannot be changed later."""

    name = forms.CharField(max_length=200)
    tenant = forms.ModelChoiceField(Tenant.objects.none(), to_field_name="slug")

    def __init__(
        self,
        data: Any,
        files: Any,
        *,
        tenants: QuerySet[Tenant],
        row: Any,
        initial: dict[str, Any],
        without: Iterable[str] = (),
    ) -> None:
        self.row = row
        super().__init__(data, files, initial=initial)
        for name in (*without, *(("name",) if row else ())):
            del self.fields[name]
        if row is not None or is_default_only(tenants):
            del self.fields["tenant"]
        else:
            self.fields["tenant"].queryset = tenants  # type: ignore[attr-defined]
        self.compare_with(row, row.revision if row else "")

    def name_of(self, cleaned: dict[str, Any]) -> str:
        """Return the name of the row."""
        return str(self.row.name if self.row else cleaned.get("name", ""))

    def identity(self) -> dict[str, Any]:
        """Return the name and the tenant of the row."""
        cleaned, row = self.cleaned_data, self.row
        tenant = row.tenant_id if row else getattr(cleaned.get("tenant"), "pk", DEFAULT_TENANT_ID)
        return {"name": self.name_of(cleaned), "tenant": tenant}


class EditModelForm(EditForm, _ModelForm):
    """The form of one row in a stock admin page; ``get_fields`` of the page must include OPENED for
    an existing row.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        exists = not self.instance._state.adding
        self.compare_with(
            self.instance if exists else None, self.version_of(self.instance) if exists else ""
        )

    def version_of(self, row: Any) -> object:
        """Return a value that every change of the row changes."""
        raise NotImplementedError


def _with_line_feeds(value: Any) -> Any:
    """Return a text with the line endings of a value; browsers send CRLF."""
    return value.replace("\r\n", "\n") if isinstance(value, str) else value


def _difference(was: Any, now: Any) -> str:
    """Return both values, or the first lines that were added to or removed from a long text."""
    if not (isinstance(was, str) and isinstance(now, str) and len(was) + len(now) > _SHOWN):
        return f"was {_quoted(was)}, is now {_quoted(now)}"
    words = {"+": "added", "-": "removed"}
    changed = [line for line in ndiff(was.splitlines(), now.splitlines()) if line[0] in words]
    lines_text = ", ".join(f"{words[line[0]]} {_quoted(line[2:])}" for line in changed[:_LINES])
    more = len(changed) - _LINES
    return f"{lines_text} and {more} more lines" if more > 0 else lines_text


def _quoted(value: Any) -> str:
    if value in (None, "", []):
        return "empty"
    text = " ".join((", ".join(map(str, value)) if isinstance(value, list) else str(value)).split())
    return f"“{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}”"
