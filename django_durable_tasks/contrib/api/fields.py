"""Serializer fields that accept exactly their JSON type: ``"5"`` is no integer, and ``1`` is no
boolean; and fields whose secrets are masked.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar

from django.db import models
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from django_durable_tasks import conf
from django_durable_tasks.audit import masked_arguments
from django_durable_tasks.choices import TargetType
from django_durable_tasks.masking import masked, masked_text, text_for_tenants
from django_durable_tasks.models.tasks import target_config
from django_durable_tasks.registry import HTTP_CALLBACK_TASK, QUEUE_MESSAGE_TASK
from django_durable_tasks.store.clock import host_now

# Years that every database and every time zone can represent.
_FIRST_YEAR, _LAST_YEAR = 1970, 8999
# Characters of a name or a key, as in the columns.
_KEY_LENGTH = 200
# Seconds. An older start time must be an error of the client.
_PAST_MAX = 86_400.0


def _type_error(expected: str, value: Any) -> serializers.ValidationError:
    names = {type(None): "null", bool: "a boolean", str: "a string", dict: "an object"}
    names |= {list: "a list", int: "a number", float: "a number"}
    kind = names.get(type(value), type(value).__name__)
    return serializers.ValidationError(f"is {kind}; send {expected}", code="type")


class Strict(serializers.Field[Any, Any, Any, Any]):
    """Refuses values of another JSON type than ``json_types``."""

    json_types: ClassVar[tuple[type, ...]]
    expected: ClassVar[str]

    def to_internal_value(self, data: Any) -> Any:
        """Return the value; raises ValidationError."""
        fits = isinstance(data, self.json_types)
        if not fits or (isinstance(data, bool) and bool not in self.json_types):
            raise _type_error(self.expected, data)
        return super().to_internal_value(data)


class Text(Strict, serializers.CharField):
    """A string, kept as it is."""

    json_types, expected = (str,), "a string"

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)


class Key(Text):
    """A name or a key."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=_KEY_LENGTH, **options)


class Integer(Strict, serializers.IntegerField):
    """A whole number."""

    json_types, expected = (int,), "a whole number"

    def to_internal_value(self, data: Any) -> Any:
        """Return the number; raises ValidationError. In JSON, 5 and 5.0 are the same number."""
        whole = isinstance(data, float) and data.is_integer()
        return super().to_internal_value(int(data) if whole else data)


class Seconds(Strict, serializers.FloatField):
    """A number of seconds."""

    json_types, expected = (int, float), "a number of seconds"


class Flag(Strict, serializers.BooleanField):
    """true or false."""

    json_types, expected = (bool,), "true or false"


class Id(Strict, serializers.UUIDField):
    """The id of a task, a recurring task or a workflow."""

    json_types, expected = (str,), "a UUID as a string"

    def to_internal_value(self, data: Any) -> uuid.UUID:
        """Return the id; raises ValidationError."""
        try:
            return uuid.UUID(data) if isinstance(data, str) else super().to_internal_value(data)
        except ValueError:
            raise serializers.ValidationError("is no UUID", code="format") from None


class OneOf(serializers.ChoiceField):
    """One of several strings, or of the values of an enum."""

    def __init__(self, choices: Iterable[Any], **options: Any) -> None:
        super().__init__(choices=[str(choice) for choice in choices], **options)

    def to_internal_value(self, data: Any) -> Any:
        """Return the string; raises ValidationError."""
        if not isinstance(data, str) or data not in self.choices:
            names = ", ".join(str(name) for name in self.choices)
            raise serializers.ValidationError(f"is not one of {names}", code="choice")
        return data


class Instant(Strict, serializers.DateTimeField):
    """A time with its offset in RFC 3339, written in UTC."""

    json_types, expected = (str,), "a time such as 2026-03-07T00:00:00Z"

    def __init__(self, **options: Any) -> None:
        super().__init__(default_timezone=UTC, **options)

    def to_internal_value(self, value: Any) -> datetime:
        """Return the time; raises ValidationError."""
        if not isinstance(value, str):
            raise _type_error(self.expected, value)
        try:
            instant = datetime.fromisoformat(value) if "T" in value[:11].upper() else None
        except ValueError:
            instant = None
        if instant is None:
            raise serializers.ValidationError(
                "is no time; write it as 2026-03-07T00:00:00Z", code="format"
            )
        if instant.utcoffset() is None:
            raise serializers.ValidationError(
                f"has no offset; write it as {value}Z, or with +01:00", code="no_offset"
            )
        if not _FIRST_YEAR <= instant.year <= _LAST_YEAR:
            raise serializers.ValidationError(
                f"is not within the years {_FIRST_YEAR} to {_LAST_YEAR}", code="range"
            )
        return instant.astimezone(UTC)

    def to_representation(self, value: Any) -> Any:
        """Return the time in UTC with microseconds."""
        if value is None:
            return None
        text: str = value.astimezone(UTC).isoformat(timespec="microseconds")
        return text.replace("+00:00", "Z")


def not_past(value: Any) -> None:
    """Raise ValidationError for a start time of more than a day ago."""
    if (host_now() - value).total_seconds() > _PAST_MAX:
        raise serializers.ValidationError("is more than a day in the past", code="past")


def future(value: Any) -> None:
    """Raise ValidationError for a time that has passed."""
    if value <= host_now():
        raise serializers.ValidationError("is in the past", code="past")


class Day(Strict, serializers.DateField):
    """A date in ISO 8601."""

    json_types, expected = (str,), "a date such as 2026-12-25"


class WallTime(Strict, serializers.TimeField):
    """A time of day in ISO 8601."""

    json_types, expected = (str,), "a time such as 13:00:00"


class Items(Strict, serializers.ListField):
    """A list, whose length is checked before its items."""

    json_types, expected = (list,), "a list"

    def to_internal_value(self, data: Any) -> Any:
        """Return the items; raises ValidationError."""
        most = self.max_length
        if isinstance(data, list) and most is not None and len(data) > most:
            text = f"has {len(data):,} items, at most {most:,} are allowed"
            raise serializers.ValidationError(text, code="range")
        return super().to_internal_value(data)


@extend_schema_field({})
class AnyJson(serializers.Field[Any, Any, Any, Any]):
    """Any JSON value."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the value."""
        return data

    def to_representation(self, value: Any) -> Any:
        """Return the value."""
        return value


@extend_schema_field({"type": "object", "additionalProperties": True})
class JsonObject(Strict, AnyJson):
    """Any JSON object."""

    json_types, expected = (dict,), "an object"


@extend_schema_field({"type": "array", "items": {}})
class JsonList(Strict, AnyJson):
    """Any JSON list."""

    json_types, expected = (list,), "a list"


# Fields of answers with secrets. ``shown`` returns the value of a row; if it is not ``plain``, its
# secrets are masked.


class SecretJson(AnyJson):
    """A JSON value of which members may be secret."""

    def shown(self, row: Any, *, plain: bool) -> Any:
        """Return the value."""
        value = getattr(row, str(self.source))
        return value if plain else masked(value, conf.settings().SECRET_NAMES)


class SecretObject(SecretJson, JsonObject):
    """A JSON object of which members may be secret."""


class ErrorText(Text):
    """A text that may quote a secret, or name a setting or a table of the operator."""

    def shown(self, row: Any, *, plain: bool) -> Any:
        """Return the text."""
        text = getattr(row, str(self.source))
        return text_for_tenants(text if plain else masked_text(text, conf.settings().SECRET_NAMES))


_TYPE_OF = {
    HTTP_CALLBACK_TASK: TargetType.HTTP_CALLBACK,
    QUEUE_MESSAGE_TASK: TargetType.QUEUE_MESSAGE,
}
BUILT_IN = {kind: name for name, kind in _TYPE_OF.items()}
"""The names of the tasks that send requests and messages, by their types of target."""


def kind_of(name: str) -> TargetType:
    """Return the type of target of a task with this name."""
    return _TYPE_OF.get(name, TargetType.CELERY_TASK)


def config_of(name: str, args: Any, kwargs: Any, *, plain: bool = True) -> dict[str, Any]:
    """Return the ``target_config`` of a task with this name and these arguments, with its secrets
    masked unless ``plain``.
    """
    if not plain:
        hidden = masked_arguments(name, args, kwargs)
        args, kwargs = hidden["args"], hidden["kwargs"]
    return target_config(kind_of(name), name, args, kwargs)


class TargetKind(OneOf):
    """The type of target of a task or a schedule, by the name of the task."""

    def __init__(self, task_name: str, **options: Any) -> None:
        self.task_name = task_name
        super().__init__(choices=TargetType, **options)

    def shown(self, row: Any, *, plain: bool) -> Any:
        """Return the type."""
        return kind_of(getattr(row, self.task_name)).value


class TargetConfig(JsonObject):
    """What a task or a schedule does, from the name of the task and the arguments."""

    def __init__(self, task_name: str, **options: Any) -> None:
        self.task_name = task_name
        super().__init__(**options)

    def shown(self, row: Any, *, plain: bool) -> Any:
        """Return the object; raises EncryptionError."""
        return config_of(getattr(row, self.task_name), row.args, row.kwargs, plain=plain)


FIELDS: dict[type[models.Field[Any, Any]], type[Strict | AnyJson]] = {
    models.CharField: Text,
    models.IntegerField: Integer,
    models.FloatField: Seconds,
    models.BooleanField: Flag,
    models.UUIDField: Id,
    models.DateTimeField: Instant,
    models.DateField: Day,
    models.TimeField: WallTime,
    models.GenericIPAddressField: Text,
    models.JSONField: SecretJson,
}
"""The field that shows or reads a column, by the class of the column or its nearest base."""
