"""Reads JSON bodies strictly: bounded size and depth, no duplicate keys, and no values that a
database cannot store. Errors name the place.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer

from django_durable_tasks import conf
from django_durable_tasks.api import problems
from django_durable_tasks.api.exception_mapping import escaped
from django_durable_tasks.api.problems import InvalidPart, Problem

_WRAPPING = 8
"""How many levels of a body may contain the arguments, whose own depth is JSON_MAX_DEPTH."""
_DIGITS_MAX = 19
_INTEGER_MAX = 2**63


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


def _check(value: Any) -> None:
    deepest = conf.settings().JSON_MAX_DEPTH + _WRAPPING
    left: list[tuple[Any, str, int]] = [(value, "#", 0)]
    while left:
        current, pointer, depth = left.pop()
        if isinstance(current, str):
            _check_text(current, pointer)
        elif isinstance(current, _Unfit):
            raise _malformed(pointer, f"is {current.detail}")
        elif isinstance(current, dict | list):
            if depth >= deepest:
                raise _malformed(pointer, f"nested more than {deepest} levels deep", "too_deep")
            left.extend((inner, at, depth + 1) for inner, at in _inside(current, pointer))


def _inside(value: dict[str, Any] | list[Any], pointer: str) -> Iterator[tuple[Any, str]]:
    if isinstance(value, list):
        yield from ((item, f"{pointer}/{index}") for index, item in enumerate(value))
        return
    if isinstance(value, _Members):
        raise _malformed(pointer, f"has the key {value.duplicate[:50]!r} twice", "duplicate_key")
    for name, item in value.items():
        _check_text(name, pointer)
        yield item, f"{pointer}/{escaped(name)}"


def _check_text(text: str, pointer: str) -> None:
    if "\x00" in text:
        raise _malformed(pointer, "contains U+0000, which databases refuse", "nul_character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _malformed(pointer, "contains a lone surrogate, which is not UTF-8") from None


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
        f"A body may have at most {most:,} bytes (DURABLE_TASKS['API_BODY_MAX_BYTES']).",
    )


class JsonRenderer(JSONRenderer):
    """Writes JSON in UTF-8; the settings of the project's own API do not apply."""

    format = "json"
    compact = True
    strict = True
    ensure_ascii = False

    def get_indent(self, accepted_media_type: str, renderer_context: Mapping[str, Any]) -> None:
        """Never indent, so that an answer does not depend on a parameter of the media type."""
        return
