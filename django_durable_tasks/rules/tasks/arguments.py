"""Arguments and results as JSON, the binding of a call to a signature, and the masking of
secrets.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from django_durable_tasks.exceptions import (
    InvalidArguments,
    PayloadTooLarge,
    ResultTooLarge,
    UnserializableArguments,
    UnserializableResult,
)

# Masks secrets: values under sensitive names are replaced wherever they are displayed.


MASK = "********"
_CUT = "... [cut]"
# Bytes of an error text or a traceback that are stored. The row of each attempt has both.
ERROR_MAX_BYTES = 16_384

_STRUCTURES = ("{", "[")
_LONG_CREDENTIAL = 20
# Of a long text this multiple of the bytes that are kept is masked, because masking makes texts
# shorter. It takes 0.3 s of processor time for each MB.
_MASKED_MULTIPLE = 4
# The value of the key "url" in JSON; its end may be missing.
_URL = re.compile(r'("url"\s{0,20}+:\s{0,20}+")((?:[^"\\]|\\.)*+)')


@dataclass(frozen=True, slots=True)
class _Patterns:
    name: re.Pattern[str]
    pair: re.Pattern[str]
    pair_of_structure: re.Pattern[str]


@functools.cache
def _patterns(names: str) -> _Patterns:
    # Possessive, with no open-ended prefix: a long word must not take quadratic time.
    end, sign = r"""[\w-]{0,100}+(?:\\{0,3}["'])?""", r"\s{0,20}+[:=]\s{0,20}+"
    key = f"(?P<key>(?:{names}){end}{sign})"
    to_quote = r"""[^"'\\\n]{0,100}+["']"""  # a key of JSON may contain blanks
    key_of_structure = f"(?P<key>(?:{names})(?:{end}|{to_quote}){sign})"
    # The end of a truncated text ends a value too.
    quoted = r"""\\{1,3}"[^"]*+"?|"(?:[^"\\]|\\[\s\S])*+"?|'(?:[^'\\]|\\[\s\S])*+'?"""
    word = r"(?:(?:bearer|basic|token)\s+)?[^\s,;&)}\]]+"
    # The end of a list or an object is not searched: its values may contain any bracket.
    to_end_of_line, to_end = r"[{\[][^\n]*+", r"[{\[][\s\S]*+"
    return _Patterns(
        re.compile(names, re.IGNORECASE),
        re.compile(f"{key}(?:{quoted}|{to_end_of_line}|{word})", re.IGNORECASE),
        re.compile(f"{key_of_structure}(?:{quoted}|{to_end}|{word})", re.IGNORECASE),
    )


def masked_text(text: str, names: str) -> str:
    """Return the text with the value of every ``name=value`` and ``"name": value`` masked.

    A text that is a JSON object or array is masked as this value. If it is not complete, everything
    after the start of a list or an object under a sensitive name is masked.
    """
    if not text.lstrip().startswith(_STRUCTURES):
        return _masked_pairs(_patterns(names).pair, text)
    masked_json = _masked_json(text, names)
    if masked_json is not None:
        return masked_json
    hidden = _masked_pairs(_patterns(names).pair_of_structure, text)
    return _URL.sub(lambda found: found[1] + masked_url(found[2]), hidden)


def masked_excerpt(text: str, names: str, max_bytes: int) -> str:
    """Return the text masked and truncated to ``max_bytes`` bytes, at a cost that they bound.

    Only the beginning is kept. The name of a secret precedes its value, so that no truncation
    separates a value from its name.
    """
    start = text[: _MASKED_MULTIPLE * max_bytes]
    hidden = masked_text(start, names)
    return shortened(hidden if len(start) == len(text) else f"{hidden}{_CUT}", max_bytes)


def _masked_pairs(pair: re.Pattern[str], text: str) -> str:
    return pair.sub(lambda found: found["key"] + MASK, text)


def _masked_json(text: str, names: str) -> str | None:
    """Return the JSON text masked; None if it is not JSON, or contains no sensitive name."""
    try:
        value = json.loads(text)
        hidden = masked(value, names)
        if hidden == value:
            return None
        found = json.dumps(hidden, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # A database does not accept the lone surrogates that JSON can contain as escapes.
    return found.encode("utf-8", "backslashreplace").decode()


def masked_url(text: str) -> str:
    """Return the URL with all values of its query masked, and the parts of its path that look like
    credentials: at least 20 characters with a letter and a digit.
    """
    address, _, fragment = text.partition("#")
    path, mark, query = address.partition("?")
    segments = [MASK if _is_credential(part) else part for part in path.split("/")]
    pairs = [pair.partition("=") for pair in query.split("&")] if query else []
    hidden = [f"{name}={MASK}" if separator else MASK for name, separator, _ in pairs]
    end = f"#{MASK}" if fragment else ""
    return f"{'/'.join(segments)}{mark}{'&'.join(hidden)}{end}"


def _is_credential(part: str) -> bool:
    return (
        len(part) >= _LONG_CREDENTIAL
        and "." not in part
        and any(character.isdigit() for character in part)
        and any(character.isalpha() for character in part)
    )


def masked(value: Any, names: str) -> Any:
    """Return the JSON value with everything under a sensitive name masked, at every depth."""
    if isinstance(value, dict):
        hides = _patterns(names).name.search
        return {
            key: MASK if hides(str(key)) else _masked_item(key, item, names)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(item, names) for item in value]
    return masked_text(value, names) if isinstance(value, str) else value


def _masked_item(key: Any, item: Any, names: str) -> Any:
    if key == "url" and isinstance(item, str):
        return masked_url(item)
    return masked(item, names)


def masked_positional(
    values: Sequence[Any], parameters: Sequence[str] | None, names: str
) -> list[Any]:
    """Return positional arguments masked by the names of their parameters; ``None``: unknown, so
    all are masked.

    Values beyond the last parameter belong to it, as those of ``*values`` do.
    """
    if parameters is None:
        return [MASK for _ in values]
    called = [
        *parameters,
        *[parameters[-1] if parameters else ""] * (len(values) - len(parameters)),
    ]
    return [masked({name: value}, names)[name] for name, value in zip(called, values, strict=False)]


def shortened(text: str, max_bytes: int) -> str:
    """Return the text truncated to ``max_bytes`` bytes of UTF-8.

    NUL and lone surrogates, which some databases refuse, are escaped.
    """
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(clean) <= max_bytes:
        return clean.decode()
    kept = clean[: max(0, max_bytes - 16)].decode("utf-8", "ignore")
    return f"{kept}{_CUT}"


# Invalid values are refused when the call is made.


# Levels of nesting of arguments and results, so that code that reads them recursively can do so.
JSON_MAX_DEPTH = 16
_KEYS_MAX = 1_000
_NONE = inspect.Parameter.empty
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
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


class CallShape:
    """Decides whether the usual calls fit a signature, in a tenth of the time of ``bind``."""

    __slots__ = ("_least", "_most", "_names", "_required")

    def __init__(self, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        by_place = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        by_name = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        required = [one for one in parameters if one.kind not in _VARIABLE and one.default is _NONE]
        self._least: float = len(required)
        if any(one.kind == one.KEYWORD_ONLY for one in required):
            self._least = float("inf")
        self._most = float("inf") if inspect.Parameter.VAR_POSITIONAL in kinds else len(by_place)
        self._names = {one.name for one in by_name}
        # A parameter without a name for callers is in no call by names only.
        self._required = {one.name for one in required}

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return True if the call certainly fits. Otherwise ``bind`` decides."""
        if not kwargs:
            return self._least <= len(args) <= self._most
        return not args and kwargs.keys() <= self._names and self._required <= kwargs.keys()


def bind(
    signature: inspect.Signature, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Check that the call fits; raises InvalidArguments that names the parameter."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"{name}{signature}: {error}.") from None


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
