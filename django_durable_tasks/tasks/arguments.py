"""Arguments and results as JSON. Invalid values are refused when the call is made."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
# Unfit arguments that one error names.
_SHOWN = 5
_INTEGER_MAX = 2**63
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<number>-?[0-9.]+e\+[0-9]+)')


# A value whose texts and items are more than this multiple of the bytes that are allowed is not
# encoded: the cost of refusing it must not depend on its size.
_ENCODED_MULTIPLE = 4


class _Unfit(Exception):
    """A value that JSON cannot represent exactly; the text contains its position and the reason.

    ``advice``: the expression to write instead. ``annotation``: the type with which a parameter
    would accept the value, if there is one.
    """

    def __init__(self, text: str, advice: str = "", annotation: str = "") -> None:
        super().__init__(text)
        self.advice, self.annotation = advice, annotation


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
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    max_bytes: int,
    max_depth: int,
    signature: inspect.Signature | None = None,
) -> Payload:
    """Return the arguments as JSON; raises UnserializableArguments or PayloadTooLarge.

    ``signature``: of the function, whose parameters the errors name and whose annotations convert
    arguments.
    """
    plain = None if kwargs else _plain_array(args)
    if plain is None:
        room, annotated = _Room(max_bytes), signature is not None
        try:
            # ``_unfit`` names the arguments. Most calls need no names.
            for value in args:
                _inspect(value, "", max_depth, room)
            for key, value in kwargs.items():
                _inspect_text(key, "", room)
                _inspect(value, "", max_depth, room)
            plain = _dumps(list(args))
            payload = Payload(plain, _dumps(dict(kwargs)) if kwargs else "{}")
        except _TooLong:
            first = _first_beyond(_labelled(args, kwargs, signature), max_depth, max_bytes)
            text = f"more than {max_bytes:,} bytes of JSON with {first}"
            raise _too_large(name, text, max_bytes) from None
        except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
            # All of them at once: a caller would otherwise meet one after the other.
            reasons = _unfit(_labelled(args, kwargs, signature), max_depth, max_bytes, annotated)
            reasons = reasons or [_reason("an argument", error, annotated)]
            raise UnserializableArguments(f"{name}: {' '.join(reasons)}") from None
    else:
        payload = Payload(plain, "{}")
    size = len(payload.args) + len(payload.kwargs)
    if size > max_bytes:
        sizes = {label: len(_dumps(value)) for label, value in _labelled(args, kwargs, signature)}
        largest = max(sizes, key=sizes.__getitem__)
        text = f"{size:,} bytes of JSON, {sizes[largest]:,} of them {largest}"
        raise _too_large(name, text, max_bytes)
    return payload


def _labelled(
    args: Sequence[Any], kwargs: Mapping[str, Any], signature: inspect.Signature | None
) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of arguments, with what errors call them: by the parameters."""
    names, rest = list[str](), ""
    for parameter in signature.parameters.values() if signature is not None else ():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(repr(parameter.name))
        elif parameter.kind is parameter.VAR_POSITIONAL:
            rest = f" (*{parameter.name})"
    for index, value in enumerate(args):
        yield f"argument {names[index] if index < len(names) else f'{index + 1}{rest}'}", value
    for key, value in kwargs.items():
        yield f"the name of argument {key!r}", key
        yield f"argument {key!r}", value


def _unfit(
    labelled: Iterable[tuple[str, Any]], depth: int, max_bytes: int, annotated: bool
) -> list[str]:
    """Return why arguments are not JSON, one reason each, at most _SHOWN."""
    reasons, room = list[str](), _Room(max_bytes)
    for label, value in labelled:
        try:
            _inspect(value, label, depth, room)
        except _TooLong:
            break
        except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
            reasons.append(_reason(label, error, annotated))
        if len(reasons) == _SHOWN:
            break
    return reasons


def _first_beyond(labelled: Iterable[tuple[str, Any]], depth: int, max_bytes: int) -> str:
    """Return the argument with which the arguments become too long to encode."""
    label, room = "", _Room(max_bytes)
    with suppress(_TooLong):
        for label, value in labelled:
            _inspect(value, label, depth, room)
    return label


def _too_large(name: str, size: str, max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{name}: the arguments are {size}, at most {max_bytes:,} are allowed"
        " (DURABLE_TASKS['PAYLOAD_MAX_BYTES']). Store the data in a model and pass its primary"
        " key."
    )


def _reason(what: str, error: Exception, annotated: bool = False) -> str:
    if isinstance(error, _Unfit):
        annotation = error.annotation if annotated else ""
        if annotation and error.advice:
            return f"{error} {error.advice}, or annotate the parameter with {annotation}."
        if annotation:
            return f"{error} Annotate the parameter with {annotation}."
        return f"{error} {error.advice}.".removesuffix(" .")
    return f"{what} cannot be read: its code raised {type(error).__name__}."


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
        raise UnserializableResult(f"{name}: {_reason('the result', error)}") from None
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
        if depth <= 0:
            raise _Unfit(f"{where} is nested too deep: at most {JSON_MAX_DEPTH} levels.")
        room.take(len(value))
        is_object = issubclass(kind, dict)
        if is_object and len(value) > _KEYS_MAX:
            raise _Unfit(f"{where} has {len(value):,} keys, at most {_KEYS_MAX:,} are allowed.")
        items: Iterable[tuple[Any, Any]] = value.items() if is_object else enumerate(value)
        for key, item in items:
            if is_object:
                if not issubclass(type(key), str):
                    raise _Unfit(
                        f"{where} has the key {key!r}; JSON keys are strings.",
                        "Pass {str(key): item for key, item in value.items()}",
                    )
                _inspect_text(key, f"a key of {where}", room)
            _inspect(item, f"{where}[{key!r}]" if len(where) < 100 else where, depth - 1, room)
    else:
        article = "an" if kind.__name__[0] in "aeio" else "a"
        advice, annotation = _advice(value)
        text = f"{where} is {article} {kind.__name__}, which is not JSON."
        if annotation and where.count("[") > 1:
            annotation = ""
        elif annotation and where.endswith("]"):
            inside = where[where.index("[") + 1 : -1]
            annotation = f"list[{annotation}]" if inside.isdigit() else f"dict[str, {annotation}]"
        raise _Unfit(text, advice, annotation)


def _inspect_text(value: str, where: str, room: _Room) -> None:
    room.take(len(value))
    if "\x00" in value:
        raise _Unfit(f"{where} holds a NUL character, which databases refuse.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Unfit(f"{where} holds a lone surrogate, which is not UTF-8.") from None


_ADVICE: tuple[tuple[str, str, str], ...] = (
    # The module and name of a class, what to write instead of its value, and the annotation. The
    # classes of Django and others are found by name, because they are not imported here.
    ("django.utils.functional.Promise", "Pass str({})", ""),
    ("django.db.models.base.Model", "Pass its primary key, {}.pk, and read it in the function", ""),
    (
        "django.db.models.query.QuerySet",
        "Pass the primary keys, list({}.values_list('pk', flat=True))",
        "",
    ),
    ("django.http.request.HttpRequest", "Pass the values that the function needs", ""),
    ("django.core.files.base.File", "Store it and pass its name, {}.name", ""),
    ("io.IOBase", "Store the file and pass its name", ""),
    ("pydantic.main.BaseModel", "Pass {}.model_dump(mode='json')", ""),
    ("pathlib.PurePath", "Pass str({})", "Path"),
    ("decimal.Decimal", "Pass str({})", "Decimal"),
    ("uuid.UUID", "Pass str({})", "UUID"),
    ("enum.Enum", "Pass {}.value", "its class"),
    ("datetime.datetime", "Pass {}.isoformat()", "datetime"),
    ("datetime.date", "Pass {}.isoformat()", "date"),
    ("datetime.time", "Pass {}.isoformat()", "time"),
    ("datetime.timedelta", "Pass {}.total_seconds()", "timedelta"),
    ("builtins.set", "Pass list({})", "set"),
    ("builtins.frozenset", "Pass list({})", "frozenset"),
    ("builtins.bytes", "Pass base64.b64encode({}).decode()", "bytes"),
    ("builtins.bytearray", "Pass bytes({}) and annotate the parameter with bytes", ""),
    ("builtins.memoryview", "Pass bytes({}) and annotate the parameter with bytes", ""),
    ("builtins.complex", "Pass [{0}.real, {0}.imag]", ""),
)


def _advice(value: object) -> tuple[str, str]:
    """Return what to write instead of this value, and the annotation that accepts it."""
    kind = type(value)
    classes = {f"{cls.__module__}.{cls.__qualname__}" for cls in kind.__mro__}
    classes |= {name.replace("pathlib._local.", "pathlib.") for name in classes}
    for name, advice, annotation in _ADVICE:
        if name in classes:
            return advice.format("value"), annotation
    if hasattr(kind, "__dataclass_fields__"):
        return "Pass dataclasses.asdict(value)", "its class"
    if hasattr(kind, "pk"):
        return "Pass its primary key, value.pk, and read it in the function", ""
    if hasattr(kind, "isoformat"):
        return "Pass value.isoformat()", ""
    try:
        shown = value.__class__
    except Exception:  # noqa: BLE001 - the class of a lazy object is that of its value
        return "", ""
    if shown is not kind and issubclass(shown, str | int | float | list | tuple | dict):
        return f"Pass {shown.__name__}(value)", ""
    if hasattr(kind, "__iter__"):
        return "Pass list(value)", ""
    return "", ""
