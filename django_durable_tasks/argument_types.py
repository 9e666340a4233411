"""Converts arguments to JSON and back by the annotations of the parameters.

The types are a closed list, ``docs/reference/calling_forms.md``. What is stored contains no names
of classes: only the annotation of the function decides what a value becomes. A parameter without
such an annotation takes JSON values, unchanged.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, NoReturn
from uuid import UUID

from django_durable_tasks.exceptions import InvalidArguments, UnserializableArguments

REFERENCE = "$result"
"""The key of a reference to the result of another task, which is converted when it is resolved."""
_LIST_LIKE = (list, tuple)
_SET_LIKE = (set, frozenset)


class _Unfit(Exception):
    """A value that is neither of the type nor its JSON form.

    ``path``: its place in the argument. The text does not contain the value, which may be a secret.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path


class _Type:
    """Converts the values of one type. Both methods accept values of the type and its JSON form,
    and raise _Unfit for others. None stays None, and with ``refers`` a reference to a result stays.
    """

    __slots__ = ()

    def to_json(self, value: Any, refers: bool) -> Any:
        return value if self._stays(value, refers) else self._to_json(value, refers)

    def from_json(self, value: Any, refers: bool) -> Any:
        return value if self._stays(value, refers) else self._from_json(value, refers)

    def _stays(self, value: Any, refers: bool) -> bool:
        return value is None or (refers and isinstance(value, Mapping) and REFERENCE in value)

    def _to_json(self, value: Any, refers: bool) -> Any:
        raise NotImplementedError

    def _from_json(self, value: Any, refers: bool) -> Any:
        raise NotImplementedError


def _refuse(value: Any, expected: str) -> NoReturn:
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeio" else "a"
    raise _Unfit(f"is {article} {name}, and not {expected}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Scalar(_Type):
    """A type whose JSON form is a text or a number."""

    wanted: str
    is_value: Callable[[Any], bool]
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]

    def _from_json(self, value: Any, refers: bool) -> Any:
        if self.is_value(value):
            return value
        try:
            return self.read(value)
        except _Unfit:
            raise
        except Exception:  # noqa: BLE001 - decimal.InvalidOperation, KeyError of an Enum, ...
            _refuse(value, self.wanted)

    def _to_json(self, value: Any, refers: bool) -> Any:
        return self.write(self._from_json(value, refers))


def _text(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def of_text(value: Any) -> Any:
        if not isinstance(value, str):
            raise TypeError
        return read(value)

    return of_text


def _number(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def of_number(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        return read(value)

    return of_number


def _is_date(value: Any) -> bool:
    if isinstance(value, datetime):
        raise _Unfit("is a datetime, whose time would be lost: pass value.date()")
    return isinstance(value, date)


def _write_time(value: time) -> str:
    if value.tzinfo is not None:
        raise _Unfit("is a time with a zone, which JSON would not keep: pass a datetime")
    return value.isoformat()


def _write_timedelta(value: timedelta) -> float:
    seconds = value.total_seconds()
    if timedelta(seconds=seconds) != value:
        raise _Unfit("is a timedelta that seconds cannot represent exactly")
    return int(seconds) if seconds.is_integer() else seconds


def _of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_SCALARS: dict[Any, _Scalar] = {
    UUID: _Scalar("a UUID or its text", _of(UUID), str, _text(UUID)),
    Decimal: _Scalar(
        "a Decimal, its text or a number",
        _of(Decimal),
        str,
        lambda value: Decimal(value if isinstance(value, str) else _number(str)(value)),
    ),
    datetime: _Scalar(
        "a datetime or its text in ISO 8601",
        _of(datetime),
        datetime.isoformat,
        _text(datetime.fromisoformat),
    ),
    date: _Scalar(
        "a date or its text in ISO 8601", _is_date, date.isoformat, _text(date.fromisoformat)
    ),
    time: _Scalar(
        "a time or its text in ISO 8601", _of(time), _write_time, _text(time.fromisoformat)
    ),
    timedelta: _Scalar(
        "a timedelta or a number of seconds",
        _of(timedelta),
        _write_timedelta,
        _number(lambda seconds: timedelta(seconds=seconds)),
    ),
    Path: _Scalar("a Path or its text", _of(Path), str, _text(Path)),
    PurePath: _Scalar("a PurePath or its text", _of(PurePath), str, _text(PurePath)),
    bytes: _Scalar(
        "bytes or their text in base64",
        _of(bytes),
        lambda value: base64.b64encode(value).decode(),
        _text(lambda text: base64.b64decode(text, validate=True)),
    ),
}


class _Plain(_Type):
    """A JSON value, which is not converted."""

    def _stays(self, value: Any, refers: bool) -> bool:
        return True


_PLAIN = _Plain()


def _each(convert: Callable[[Any], Any], value: Any) -> list[Any]:
    converted = []
    for index, item in enumerate(value):
        try:
            converted.append(convert(item))
        except _Unfit as unfit:
            raise _Unfit(unfit.reason, f"[{index}]{unfit.path}") from None
    return converted


@dataclasses.dataclass(frozen=True, slots=True)
class _Items(_Type):
    """``list[T]``, ``set[T]``, ``frozenset[T]`` and ``tuple[T, ...]``: a list in JSON."""

    kind: Callable[[Any], Any]
    item: _Type
    accepted: tuple[type, ...]

    def _from_json(self, value: Any, refers: bool) -> Any:
        self._check(value)
        return self.kind(_each(lambda item: self.item.from_json(item, refers), value))

    def _to_json(self, value: Any, refers: bool) -> Any:
        self._check(value)
        items = _each(lambda item: self.item.to_json(item, refers), value)
        if isinstance(value, _SET_LIKE):
            # The order of a set differs between processes; equal calls have equal arguments.
            items.sort(key=lambda item: (type(item).__name__, json.dumps(item, default=repr)))
        return items

    def _check(self, value: Any) -> None:
        if not isinstance(value, self.accepted):
            _refuse(value, f"a {getattr(self.kind, '__name__', 'list')}: pass list(value)")


@dataclasses.dataclass(frozen=True, slots=True)
class _Fixed(_Type):
    """``tuple[A, B]``: a list of this length in JSON."""

    items: tuple[_Type, ...]

    def _from_json(self, value: Any, refers: bool) -> Any:
        pairs = self._pairs(value)
        return tuple(_each(lambda pair: pair[0].from_json(pair[1], refers), pairs))

    def _to_json(self, value: Any, refers: bool) -> Any:
        return _each(lambda pair: pair[0].to_json(pair[1], refers), self._pairs(value))

    def _pairs(self, value: Any) -> list[tuple[_Type, Any]]:
        if not isinstance(value, _LIST_LIKE):
            _refuse(value, "a tuple")
        if len(value) != len(self.items):
            raise _Unfit(f"has {len(value)} items instead of {len(self.items)}")
        return list(zip(self.items, value, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class _Dict(_Type):
    """``dict[str, T]``: an object in JSON."""

    item: _Type

    def _from_json(self, value: Any, refers: bool) -> Any:
        return self._converted(value, refers, self.item.from_json)

    def _to_json(self, value: Any, refers: bool) -> Any:
        return self._converted(value, refers, self.item.to_json)

    def _converted(self, value: Any, refers: bool, convert: Callable[[Any, bool], Any]) -> Any:
        if not isinstance(value, Mapping):
            _refuse(value, "a dict")
        return {key: _entry(key, item, refers, convert) for key, item in value.items()}


def _entry(key: Any, value: Any, refers: bool, convert: Callable[[Any, bool], Any]) -> Any:
    try:
        return convert(value, refers)
    except _Unfit as unfit:
        raise _Unfit(unfit.reason, f"[{key!r}]{unfit.path}") from None


class _Dataclass(_Type):
    """A dataclass: an object with its fields in JSON."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.fields: dict[str, _Type] = {}
        """The types of the fields of ``__init__``, set after the creation: they may contain it."""
        no_default = dataclasses.MISSING
        self.required = {
            spec.name
            for spec in dataclasses.fields(kind)
            if spec.init and spec.default is no_default and spec.default_factory is no_default
        }

    def _from_json(self, value: Any, refers: bool) -> Any:
        if type(value) is self.kind:
            return value
        fields = self._fields(value, refers, lambda kind: kind.from_json)
        try:
            return self.kind(**fields)
        except Exception as error:  # noqa: BLE001 - the code of the class may raise anything
            lacking = sorted(self.required - fields.keys())
            reason = f"lacks {lacking[0]!r}" if lacking else f"raised {type(error).__name__}"
            raise _Unfit(f"is no {self.kind.__name__}: it {reason}") from None

    def _to_json(self, value: Any, refers: bool) -> Any:
        if type(value) is not self.kind:
            # With references no object can be created yet.
            fields = self._fields(value, refers, lambda kind: kind.to_json)
            if refers:
                return fields
            value = self._from_json(value, refers)
        values = {name: getattr(value, name) for name in self.fields}
        return self._fields(values, refers, lambda kind: kind.to_json)

    def _fields(
        self, value: Any, refers: bool, convert: Callable[[_Type], Callable[[Any, bool], Any]]
    ) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            _refuse(value, f"a {self.kind.__name__} or a dict of its fields")
        unknown = sorted(str(key) for key in value if key not in self.fields)
        if unknown:
            raise _Unfit(f"has {unknown[0]!r:.100}, which is no field of {self.kind.__name__}")
        return {
            name: _entry(name, item, refers, convert(self.fields[name]))
            for name, item in value.items()
        }


class ArgumentTypes:
    """The parameters of a function whose arguments are converted."""

    def __init__(self, signature: inspect.Signature, function: Any) -> None:
        with suppress(ValueError):
            function = inspect.unwrap(function)
        namespace = getattr(function, "__globals__", {})
        self._places: list[tuple[str, _Type]] = []
        self._names: dict[str, _Type] = {}
        self._rest: tuple[str, _Type] = ("", _PLAIN)
        self._rest_of_names: _Type = _PLAIN
        for name, parameter in signature.parameters.items():
            parameter_type = _type_of(_resolved(parameter.annotation, namespace), {})
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = (name, parameter_type)
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._rest_of_names = parameter_type
            else:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    self._places.append((name, parameter_type))
                if parameter.kind is not parameter.POSITIONAL_ONLY:
                    self._names[name] = parameter_type
        every = [*dict(self._places).values(), *self._names.values()]
        every += [self._rest[1], self._rest_of_names]
        self.converts = any(kind is not _PLAIN for kind in every)
        """Whether any parameter is converted."""

    def to_json(
        self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, refers: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call in their JSON form; raises UnserializableArguments.

        ``refers``: they may contain references to results, which stay as they are.
        """
        return self._converted(
            task, args, kwargs, lambda kind, value: kind.to_json(value, refers), at_call=True
        )

    def from_json(
        self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, refers: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for the function; raises InvalidArguments."""
        converted, named = self._converted(
            task, args, kwargs, lambda kind, value: kind.from_json(value, refers), at_call=False
        )
        return list(converted), named

    def _converted(
        self,
        task: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        convert: Callable[[_Type, Any], Any],
        *,
        at_call: bool,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        name: Any = ""
        try:
            converted = []
            for index, value in enumerate(args):
                name, kind = self._places[index] if index < len(self._places) else self._rest
                converted.append(convert(kind, value))
            named = {}
            for name, value in kwargs.items():
                named[name] = convert(self._names.get(name, self._rest_of_names), value)
        except _Unfit as unfit:
            error = UnserializableArguments if at_call else InvalidArguments
            raise error(f"{task}: argument {name!r}{unfit.path} {unfit.reason}.") from None
        return tuple(converted), named


def _resolved(annotation: Any, namespace: Mapping[str, Any], local_names: Any = None) -> Any:
    """Return the type of an annotation that may be a text, or Any if a name of it is unknown here,
    for example because only type checkers import it.
    """

    def holder() -> None: ...

    holder.__annotations__ = {"value": annotation}
    try:
        return typing.get_type_hints(holder, dict(namespace), local_names)["value"]
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        return Any


def _type_of(annotation: Any, known: dict[Any, _Type]) -> _Type:
    """Return the type that converts values of this annotation. ``known``: of the dataclasses that
    contain it.
    """
    # The type of ``Annotated``, ``NewType`` and ``type X = ...``.
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            break
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in inner if member is not type(None)]
        return _type_of(members[0], known) if len(members) == 1 else _PLAIN
    kind = origin or annotation
    if kind is tuple:
        if inner and not (len(inner) == 2 and inner[1] is Ellipsis):
            return _Fixed(tuple(_type_of(item, known) for item in inner if item != ()))
        return _Items(tuple, _type_of(inner[0], known) if inner else _PLAIN, _LIST_LIKE)
    if kind in _SET_LIKE:
        item = _type_of(inner[0], known) if inner else _PLAIN
        return _Items(kind, item, (*_LIST_LIKE, *_SET_LIKE))
    if kind is list and inner:
        item = _type_of(inner[0], known)
        return _PLAIN if item is _PLAIN else _Items(list, item, _LIST_LIKE)
    if kind is dict and len(inner) == 2:
        item = _type_of(inner[1], known)
        return _PLAIN if item is _PLAIN else _Dict(item)
    if not isinstance(kind, type):
        return _PLAIN
    if kind in _SCALARS:
        return _SCALARS[kind]
    if issubclass(kind, enum.Enum) and len(kind):
        # Members are stored by their values, or by their names if a value is no text or number.
        is_member = _of(kind)
        if all(
            isinstance(member.value, str | int | float) and not isinstance(member.value, bool)
            for member in kind
        ):
            expected = f"a {kind.__name__} or one of its values"
            return _Scalar(expected, is_member, lambda member: member.value, kind)
        expected = f"a {kind.__name__} or one of its names"
        by_name = _text(lambda name: kind[name])
        return _Scalar(expected, is_member, lambda member: member.name, by_name)
    if not dataclasses.is_dataclass(kind):
        return _PLAIN
    if kind in known:
        return known[kind]
    specs: dict[str, Any] = vars(kind).get("__dataclass_fields__") or kind.__dataclass_fields__
    if any(spec._field_type is dataclasses._FIELD_INITVAR for spec in specs.values()):  # type: ignore[attr-defined]
        return _PLAIN  # its value is not kept in the object
    dataclass_type = _Dataclass(kind)
    known = {**known, kind: dataclass_type}
    namespace = vars(sys.modules.get(kind.__module__, typing))
    for spec in dataclasses.fields(kind):
        if spec.init:
            annotation = _resolved(spec.type, namespace, dict(vars(kind)))
            dataclass_type.fields[spec.name] = _type_of(annotation, known)
    return dataclass_type
