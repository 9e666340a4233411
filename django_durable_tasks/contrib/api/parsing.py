"""JSON texts: bodies of a bounded size and depth, without duplicate keys and values that a database
cannot store; and answers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer

from django_durable_tasks.contrib.api import problems
from django_durable_tasks.contrib.api.problems import InvalidPart, Problem, escaped
from django_durable_tasks.tasks.arguments import JSON_MAX_DEPTH

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
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated = _Members(members)
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
    pending: list[tuple[Any, _Place, int]] = [(value, _Place(None, ""), 0)]
    count = 1
    while pending:
        current, place, depth = pending.pop()
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
            pending.extend((inner, at, depth + 1) for inner, at in _inside(current, place))


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
    invalid = InvalidPart(pointer[:200], detail, code)
    return Problem(problems.MALFORMED, f"{pointer[:200]} {detail}.", [invalid])


BODY_MAX_BYTES = 1_048_576
"""The largest body of a request: 1,000 tasks with arguments of 1 KB."""


class JsonParser(BaseParser):
    """Reads at most BODY_MAX_BYTES, whatever limit the project has set for its uploads."""

    media_type = "application/json"

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the value of the body; raises Problem."""
        content = stream.read(BODY_MAX_BYTES + 1)
        if len(content) > BODY_MAX_BYTES:
            raise too_large()
        return loads(content)


def too_large() -> Problem:
    """Return the problem of a body with more than BODY_MAX_BYTES bytes."""
    return Problem(
        problems.BODY_TOO_LARGE,
        f"A body may have at most {BODY_MAX_BYTES:,} bytes. Send several requests, or store the"
        " data where the task can read them.",
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
    text: bytes = _renderer.render(value)
    return text
