"""Reads JSON bodies strictly: bounded, without duplicate keys, each field of exactly its JSON
type.
"""

from __future__ import annotations

import functools
import json
import math
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.problems import InvalidPart, Problem, escaped
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.models.tasks import BUILT_IN_MEMBERS, CELERY_MEMBERS
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH

# Reads JSON bodies strictly: bounded size and depth, no duplicate keys, and no values that a
# database cannot store. Errors name the place.


_WRAPPING = 8
"""How many levels of a body may contain the arguments, whose own depth is JSON_MAX_DEPTH."""
_DIGITS_MAX = 19
_KEY_MAX = 1_000
_INTEGER_MAX = 2**63
# Values of a body. Each costs microseconds in several passes, so that 1 MiB of empty lists took two
# seconds of processor time before it was refused.
_VALUES_MAX = 50_000


class _Unfit:
    """Replaces a value that JSON or the database does not have."""

    def __init__(self, detail: str) -> None:
        self.detail = detail


class _Members(dict[str, Any]):
    """An object with a duplicate key."""

    duplicate = ""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = _Members(found)
    ((repeated.duplicate, _times),) = Counter(name for name, _value in pairs).most_common(1)
    return repeated


def _integer(digits: str) -> Any:
    if len(digits.lstrip("-")) > _DIGITS_MAX or not -_INTEGER_MAX <= int(digits) < _INTEGER_MAX:
        return _Unfit("an integer beyond 64 bits; send it as a string")
    return int(digits)


def _number(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else _Unfit("a number beyond the range of a float")


def loads(content: bytes) -> Any:
    """Return the value of a JSON text; raises Problem."""
    try:
        value = json.loads(
            content.decode(),
            parse_constant=lambda name: _Unfit(f"{name}, which is not JSON"),
            parse_int=_integer,
            parse_float=_number,
            object_pairs_hook=_members,
        )
    except UnicodeDecodeError as error:
        raise Problem(problems.MALFORMED, f"The body is not UTF-8: {error.reason}.") from None
    except RecursionError:
        raise _malformed("#", "nested too deeply", "too_deep") from None
    except ValueError as error:
        raise Problem(problems.MALFORMED, f"The body is not JSON: {error}.") from None
    _check(value)
    return value


class _Place(NamedTuple):
    """A place in a body: the container's place and the key in it. The pointer is built only for an
    error, because pointers of all values would take many times the memory of the body.
    """

    container: _Place | None
    key: str | int

    @property
    def pointer(self) -> str:
        """The JSON pointer."""
        keys: list[str] = []
        place: _Place | None = self
        while place is not None and place.container is not None:
            keys.append(escaped(str(place.key)))
            place = place.container
        return "/".join(["#", *reversed(keys)])


def _check(value: Any) -> None:
    deepest = JSON_MAX_DEPTH + _WRAPPING
    left: list[tuple[Any, _Place, int]] = [(value, _Place(None, ""), 0)]
    count = 1
    while left:
        current, place, depth = left.pop()
        if isinstance(current, str):
            _check_text(current, place)
        elif isinstance(current, _Unfit):
            raise _malformed(place.pointer, f"is {current.detail}")
        elif isinstance(current, dict | list):
            if depth >= deepest:
                text = f"nested more than {deepest} levels deep"
                raise _malformed(place.pointer, text, "too_deep")
            count += len(current)
            if count > _VALUES_MAX:
                text = f"a body may have {_VALUES_MAX:,} values"
                raise _malformed("#", f"is too large: {text}", "too_many_values")
            left.extend((inner, at, depth + 1) for inner, at in _inside(current, place))


def _inside(value: dict[str, Any] | list[Any], place: _Place) -> Iterator[tuple[Any, _Place]]:
    if isinstance(value, list):
        yield from (
            (item, _Place(place, index)) for index, item in enumerate(value) if _is_checked(item)
        )
        return
    if isinstance(value, _Members):
        text = f"has the key {value.duplicate[:50]!r} twice"
        raise _malformed(place.pointer, text, "duplicate_key")
    for name, item in value.items():
        if len(name) > _KEY_MAX:
            raise _malformed(place.pointer, f"has a key of more than {_KEY_MAX} characters")
        _check_text(name, place)
        if _is_checked(item):
            yield item, _Place(place, name)


def _is_checked(value: Any) -> bool:
    return isinstance(value, str | dict | list | _Unfit)


def _check_text(text: str, place: _Place) -> None:
    if "\x00" in text:
        detail = "contains U+0000, which databases refuse"
        raise _malformed(place.pointer, detail, "nul_character")
    try:
        text.encode()
    except UnicodeEncodeError:
        detail = "contains a lone surrogate, which is not UTF-8"
        raise _malformed(place.pointer, detail) from None


def _malformed(pointer: str, detail: str, code: str = "invalid") -> Problem:
    pointer = pointer.encode(errors="backslashreplace").decode().replace("\x00", "\\u0000")
    part = InvalidPart(pointer[:200], detail, code)
    return Problem(problems.MALFORMED, f"{pointer[:200]} {detail}.", [part])


class JsonParser(BaseParser):
    """Reads at most API_BODY_MAX_BYTES, whatever limit the project has set for its uploads."""

    media_type = "application/json"

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the value of the body; raises Problem."""
        most = conf.settings().API_BODY_MAX_BYTES
        content = stream.read(most + 1)
        if len(content) > most:
            raise too_large(most)
        return loads(content)


def too_large(most: int) -> Problem:
    """Return the problem of a body with more than ``most`` bytes."""
    return Problem(
        problems.BODY_TOO_LARGE,
        f"A body may have at most {most:,} bytes. Send several requests, or store the data"
        " where the task can read them.",
    )


class JsonRenderer(JSONRenderer):
    """Writes JSON in UTF-8; the settings of the project's own API do not apply."""

    format = "json"
    compact = True
    strict = True
    ensure_ascii = False

    def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the JSON text of the data; bytes are such a text already."""
        return data if isinstance(data, bytes) else super().render(data, *args, **kwargs)

    def get_indent(self, accepted_media_type: str, renderer_context: Mapping[str, Any]) -> None:
        """Never indent, so that an answer does not depend on a parameter of the media type."""
        return


_renderer = JsonRenderer()


def rendered(value: Any) -> bytes:
    """Return a value as the JSON text of an answer."""
    found: bytes = _renderer.render(value)
    return found


# Fields that accept exactly their JSON type: ``"5"`` is no integer, and ``1`` is no boolean.


if TYPE_CHECKING:
    _Serializer = serializers.Serializer[Any]
    _Field = serializers.Field[Any, Any, Any, Any]
else:
    _Serializer = serializers.Serializer
    _Field = serializers.Field

_FIRST_YEAR, _LAST_YEAR = 1970, 8999
KEY_LENGTH = 200
_ERRORS, _HINTS, _HINTED = 20, 5, 100
"""At most 20 unknown fields are reported, 5 with a hint if their names have at most 100 characters.
"""

_MEMBERS = {"target_config": BUILT_IN_MEMBERS | CELERY_MEMBERS, "delivery_config": {"to", "url"}}
"""The members of the objects in a body, which clients put beside the object by mistake."""


def _type_error(expected: str, value: Any) -> serializers.ValidationError:
    names = {type(None): "null", bool: "a boolean", str: "a string", dict: "an object"}
    names |= {list: "a list", int: "a number", float: "a number"}
    given = names.get(type(value), type(value).__name__)
    return serializers.ValidationError(f"is {given}; send {expected}", code="type")


class Text(serializers.CharField):
    """A string, kept as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        """Return the string; raises ValidationError."""
        if not isinstance(data, str):
            raise _type_error("a string", data)
        return super().to_internal_value(data)


class Integer(serializers.IntegerField):
    """A whole number."""

    def to_internal_value(self, data: Any) -> int:
        """Return the number; raises ValidationError."""
        if isinstance(data, float) and data.is_integer():
            data = int(data)  # in JSON, 5 and 5.0 are the same number
        if isinstance(data, bool) or not isinstance(data, int):
            raise _type_error("a whole number", data)
        return data


class Seconds(serializers.FloatField):
    """A number of seconds."""

    def to_internal_value(self, data: Any) -> float:
        """Return the number; raises ValidationError."""
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise _type_error("a number of seconds", data)
        return float(data)


class Flag(serializers.BooleanField):
    """true or false."""

    def to_internal_value(self, data: Any) -> bool:
        """Return the boolean; raises ValidationError."""
        if not isinstance(data, bool):
            raise _type_error("true or false", data)
        return data


class Id(serializers.UUIDField):
    """The id of a task, a recurring task or a workflow."""

    def to_internal_value(self, data: Any) -> uuid.UUID:
        """Return the id; raises ValidationError."""
        if not isinstance(data, str):
            raise _type_error("a UUID as a string", data)
        try:
            return uuid.UUID(data)
        except ValueError:
            raise serializers.ValidationError("is no UUID", code="format") from None


class OneOf(serializers.ChoiceField):
    """One of several strings."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the string; raises ValidationError."""
        if not isinstance(data, str) or data not in self.choices:
            names = ", ".join(str(name) for name in self.choices)
            raise serializers.ValidationError(f"is not one of {names}", code="choice")
        return data


class Instant(serializers.DateTimeField):
    """A time with its offset in RFC 3339, written in UTC."""

    def __init__(self, **options: Any) -> None:
        super().__init__(default_timezone=UTC, **options)

    def to_internal_value(self, value: Any) -> datetime:
        """Return the time; raises ValidationError."""
        if not isinstance(value, str):
            raise _type_error("a time such as 2026-03-07T00:00:00Z", value)
        return read_instant(value)

    def to_representation(self, value: Any) -> Any:
        """Return the time in UTC with microseconds."""
        if value is None:
            return None
        text: str = value.astimezone(UTC).isoformat(timespec="microseconds")
        return text.replace("+00:00", "Z")


class Day(serializers.DateField):
    """A date in ISO 8601."""

    def to_internal_value(self, value: Any) -> Any:
        """Return the date; raises ValidationError."""
        if not isinstance(value, str):
            raise _type_error("a date such as 2026-12-25", value)
        return super().to_internal_value(value)


class WallTime(serializers.TimeField):
    """A time of day in ISO 8601."""

    def to_internal_value(self, value: Any) -> Any:
        """Return the time; raises ValidationError."""
        if not isinstance(value, str):
            raise _type_error("a time such as 13:00:00", value)
        return super().to_internal_value(value)


def read_instant(text: str) -> datetime:
    """Return the aware time of a text; raises ValidationError."""
    try:
        found = datetime.fromisoformat(text) if "T" in text[:11].upper() else None
    except ValueError:
        found = None
    if found is None:
        raise serializers.ValidationError(
            "is no time; write it as 2026-03-07T00:00:00Z", code="format"
        )
    if found.utcoffset() is None:
        raise serializers.ValidationError(
            f"has no offset; write it as {text}Z, or with +01:00", code="no_offset"
        )
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise serializers.ValidationError(
            f"is not within the years {_FIRST_YEAR} to {_LAST_YEAR}", code="range"
        )
    return found.astimezone(UTC)


class BoundedList(serializers.ListField):
    """A list, whose length is checked before its items."""

    def to_internal_value(self, data: Any) -> list[Any]:
        """Return the items; raises ValidationError."""
        if not isinstance(data, list):
            raise _type_error("a list", data)
        if self.max_length is not None and len(data) > self.max_length:
            raise serializers.ValidationError(
                f"has {len(data):,} items, at most {self.max_length:,} are allowed", code="range"
            )
        return super().to_internal_value(data)


@extend_schema_field({"type": "object", "additionalProperties": True})
class JsonObject(_Field):
    """Any JSON object."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """Return the object; raises ValidationError."""
        if not isinstance(data, dict):
            raise _type_error("an object", data)
        return data

    def to_representation(self, value: Any) -> Any:
        """Return the object."""
        return value


@extend_schema_field({"type": "array", "items": {}})
class JsonList(_Field):
    """Any JSON list."""

    def to_internal_value(self, data: Any) -> list[Any]:
        """Return the list; raises ValidationError."""
        if not isinstance(data, list):
            raise _type_error("a list", data)
        return data

    def to_representation(self, value: Any) -> Any:
        """Return the list."""
        return value


@extend_schema_field({})
class AnyJson(_Field):
    """Any JSON value."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the value."""
        return data

    def to_representation(self, value: Any) -> Any:
        """Return the value."""
        return value


class Body(_Serializer):
    """A JSON object; unknown fields are refused with the most similar known one."""

    @classmethod
    def valid(cls, data: Any, *, partial: bool = False, briefly: bool = False) -> Any:
        """Return the values of the given fields; raises ValidationError. With ``partial`` no field
        is required. With ``briefly``, one unknown field is named, without a hint.
        """
        if briefly and isinstance(data, Mapping):
            known = _reader(cls, partial).fields.keys()
            for name in data:
                if name not in known:
                    raise serializers.ValidationError({name: [unknown_field(str(name), set())]})
        return _reader(cls, partial).run_validation(data)

    def to_internal_value(self, data: Any) -> Any:
        """Return the values of the given fields; raises ValidationError."""
        if not isinstance(data, Mapping):
            raise serializers.ValidationError(
                {"non_field_errors": ["is no JSON object"]}, code="type"
            )
        known = {name for name, one in self.fields.items() if not one.read_only}
        unknown = [name for name in data if name not in known]
        if unknown:
            raise serializers.ValidationError(
                {
                    name: [unknown_field(str(name), known if place < _HINTS else set())]
                    for place, name in enumerate(unknown[:_ERRORS])
                }
            )
        return super().to_internal_value(data)


@functools.cache
def _reader(body: type[Body], partial: bool) -> Body:
    """Return an instance that validates bodies and keeps no state of them.

    Making its fields takes longer than validating a body.
    """
    return body(partial=partial)


def unknown_field(name: str, known: set[str]) -> Any:
    """Return the error of a field that does not exist, with the object that has such a member or
    the most similar field.
    """
    owner = next(
        (one for one, members in _MEMBERS.items() if one in known and name in members), None
    )
    hint = did_you_mean(name, known) if len(name) <= _HINTED else ""
    hint = f"It is a member of {owner}: put it there." if owner else hint
    text = f"is no field. {hint}".strip()
    return serializers.ErrorDetail(text, code="unknown_field")
