"""Arguments and results as JSON. Invalid values are refused when the call is made."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from django_durable_tasks.exceptions import (
    PayloadTooLarge,
    ResultTooLarge,
    UnserializableArguments,
    UnserializableResult,
)

# Levels of nesting of arguments and results, so that code that reads them recursively can do so.
JSON_MAX_DEPTH = 16
_KEYS_MAX = 1_000
_INTEGER_MAX = 2**63
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<number>-?[0-9.]+e\+[0-9]+)')


# A value whose texts and items are more than this multiple of the bytes that are allowed is not
# encoded: the cost of refusing it must not depend on its size.
_ENCODED_MULTIPLE = 4


class _Unfit(Exception):
    """A value that JSON cannot represent exactly; the text contains its position and the reason."""


class _TooLong(Exception):
    """A value that is much longer than allowed."""


class _Room:
    """How many characters of texts and items of containers a value may still have."""

    __slots__ = ("left",)

    def __init__(self, max_bytes: int) -> None:
        self.left = _ENCODED_MULTIPLE * max_bytes

    def take(self, number: int) -> None:
        """Count this many; raises _TooLong."""
        self.left -= number
        if self.left < 0:
            raise _TooLong


class Payload(NamedTuple):
    """Encoded arguments: two JSON texts."""

    args: str
    kwargs: str


def encode(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, max_bytes: int, max_depth: int
) -> Payload:
    """Return the arguments as JSON; raises UnserializableArguments or PayloadTooLarge."""
    plain = None if kwargs else _plain_array(args)
    if plain is None:
        room = _Room(max_bytes)
        try:
            for index, value in enumerate(args):
                _inspect(value, f"argument {index + 1}", max_depth, room)
            for key, value in kwargs.items():
                _inspect_text(key, f"the name of argument {key!r}", room)
                _inspect(value, f"argument {key!r}", max_depth, room)
            plain = _dumps(list(args))
            payload = Payload(plain, _dumps(dict(kwargs)) if kwargs else "{}")
        except _TooLong:
            raise _too_large(name, f"more than {max_bytes:,}", max_bytes) from None
        except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
            raise UnserializableArguments(_reason(name, "an argument", error)) from None
    else:
        payload = Payload(plain, "{}")
    size = len(payload.args) + len(payload.kwargs)
    if size > max_bytes:
        raise _too_large(name, f"{size:,}", max_bytes)
    return payload


def _too_large(name: str, size: str, max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{name}: the arguments are {size} bytes of JSON, at most {max_bytes:,} are allowed"
        " (DURABLE_TASKS['PAYLOAD_MAX_BYTES']). Store the data in a model and pass its primary"
        " key."
    )


def _reason(name: str, what: str, error: Exception) -> str:
    if isinstance(error, _Unfit):
        return f"{name}: {error}"
    return f"{name}: {what} cannot be read: its code raised {type(error).__name__}."


def encode_result(name: str, value: Any, *, max_bytes: int, max_depth: int) -> str | None:
    """Return the result as JSON, None for None; raises UnserializableResult or ResultTooLarge."""
    if value is None:
        return None
    try:
        _inspect(value, "the result", max_depth, _Room(max_bytes))
        text = _dumps(value)
    except _TooLong:
        raise ResultTooLarge(
            f"{name}: the result is more than {max_bytes:,} bytes of JSON, which are allowed."
        ) from None
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
        raise UnserializableResult(_reason(name, "the result", error)) from None
    if len(text) > max_bytes:
        raise ResultTooLarge(
            f"{name}: the result is {len(text):,} bytes of JSON, at most {max_bytes:,} are allowed."
        )
    return text


_json = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


def _dumps(value: Any) -> str:
    text = _json(value)
    return _TOKEN.sub(_without_exponent, text) if "e+" in text else text


def _without_exponent(token: re.Match[str]) -> str:
    """Write a large float without an exponent: PostgreSQL would return 1e+23 as an integer with
    another value.
    """
    number = token["number"]
    return f"{float(number):.1f}" if number else token[0]


def _plain_array(values: Sequence[Any]) -> str | None:
    """Return the array that ``_dumps`` returns if it contains only integers and ASCII texts that
    ``_inspect`` accepts, without the JSON encoder, which takes longer; otherwise None.
    """
    items = []
    for value in values:
        kind = type(value)
        if kind is int and -_INTEGER_MAX <= value < _INTEGER_MAX:
            items.append(str(value))
        elif kind is str and value.isascii() and "\x00" not in value:
            items.append(encode_basestring_ascii(value))
        else:
            return None
    return f"[{','.join(items)}]"


def _inspect(value: Any, where: str, depth: int, room: _Room) -> None:
    # The type decides, as in the encoder. A proxy pretends another ``__class__`` to isinstance().
    kind = type(value)
    if value is None or kind is bool:
        return
    if issubclass(kind, str):
        _inspect_text(value, where, room)
    elif issubclass(kind, int):
        if not -_INTEGER_MAX <= value < _INTEGER_MAX:
            raise _Unfit(f"{where} is an integer beyond 64 bits; pass it as a string.")
    elif issubclass(kind, float):
        if not math.isfinite(value):
            raise _Unfit(f"{where} is {value!r}, which is not JSON.")
    elif issubclass(kind, list | tuple | dict):
        _inspect_container(value, where, depth, room)
    else:
        raise _Unfit(f"{where} is a {kind.__name__}, which is not JSON.{_advice(value)}")


def _inspect_text(value: str, where: str, room: _Room) -> None:
    room.take(len(value))
    if "\x00" in value:
        raise _Unfit(f"{where} holds a NUL character, which databases refuse.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Unfit(f"{where} holds a lone surrogate, which is not UTF-8.") from None


def _inspect_container(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any], where: str, depth: int, room: _Room
) -> None:
    if depth <= 0:
        raise _Unfit(f"{where} is nested too deep: at most {JSON_MAX_DEPTH} levels.")
    room.take(len(value))
    if issubclass(type(value), dict):
        if len(value) > _KEYS_MAX:
            raise _Unfit(f"{where} has {len(value):,} keys, at most {_KEYS_MAX:,} are allowed.")
        for key, item in value.items():  # type: ignore[union-attr]
            if not issubclass(type(key), str):
                raise _Unfit(f"{where} has the key {key!r}; JSON keys are strings.")
            _inspect_text(key, f"a key of {where}", room)
            _inspect(item, f"{where}[{key!r}]" if len(where) < 100 else where, depth - 1, room)
    else:
        for index, item in enumerate(value):
            _inspect(item, f"{where}[{index}]" if len(where) < 100 else where, depth - 1, room)


def _advice(value: object) -> str:
    kind = type(value)
    if hasattr(kind, "pk"):
        return " Pass its primary key and read the row in the body."
    if hasattr(kind, "isoformat"):
        return " Pass value.isoformat() and parse it in the body."
    try:
        shown = value.__class__
    except Exception:  # noqa: BLE001 - the class of a lazy object is that of its value
        return ""
    if shown is not kind and issubclass(shown, str | int | float | list | tuple | dict):
        return f" Pass {shown.__name__}(value)."
    return ""
