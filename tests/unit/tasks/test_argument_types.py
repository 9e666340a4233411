"""Arguments are converted to JSON and back by the annotations of the parameters."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Annotated, Any, NewType, Optional
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.argument_types import ArgumentTypes
from django_durable_tasks.celery.task import signature_of
from django_durable_tasks.exceptions import InvalidArguments, UnserializableArguments


class Color(enum.Enum):
    """Stored by value."""

    RED = "red"
    BLUE = 2


class Size(enum.StrEnum):
    """Is a text already."""

    SMALL = "s"


class Point(enum.Enum):
    """Stored by name: its values are no JSON."""

    ORIGIN = (0, 0)


@dataclass(frozen=True)
class Price:
    """A dataclass with a type of the list and a plain one."""

    amount: Decimal
    currency: str = "EUR"


@dataclass
class Order:
    """A dataclass with dataclasses, itself, and a field that is computed."""

    pk: UUID
    prices: list[Price] = field(default_factory=list)
    parent: Optional[Order] = None  # noqa: UP045 - this spelling too
    note: Any = None
    total: Decimal = field(init=False, default=Decimal(0))


OrderId = NewType("OrderId", UUID)
ID = UUID("6f3c9a52-6a5e-5c0e-9d0b-1d7a1a0c7f11")
AT = datetime(2026, 3, 1, 12, 30, 15, 7, tzinfo=UTC)
PRICE = Price(Decimal("1.10"))


def _types(annotation: Any) -> ArgumentTypes:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    return ArgumentTypes(signature_of(function, bound=False), function)


CASES: list[tuple[Any, Any, Any]] = [
    (UUID, ID, str(ID)),
    (OrderId, ID, str(ID)),
    (Decimal, Decimal("1.10"), "1.10"),
    (datetime, AT, "2026-03-01T12:30:15.000007+00:00"),
    (datetime, datetime(2026, 3, 1), "2026-03-01T00:00:00"),
    (date, date(2026, 3, 1), "2026-03-01"),
    (time, time(12, 30), "12:30:00"),
    (timedelta, timedelta(minutes=2), 120),
    (timedelta, timedelta(milliseconds=1500), 1.5),
    (Path, Path("/srv/a b"), "/srv/a b"),
    (PurePath, PurePath("a"), "a"),
    (bytes, b"\x00\xff", "AP8="),
    (bytes, b"", ""),
    (bytes | None, None, None),
    (list[bytes], [b"a", b"b"], ["YQ==", "Yg=="]),
    (dict[str, bytes], {"a": b"a"}, {"a": "YQ=="}),
    (tuple[str, bytes], ("a", b"a"), ["a", "YQ=="]),
    (set[bytes], {b"b", b"a"}, ["YQ==", "Yg=="]),
    (Color, Color.RED, "red"),
    (Color, Color.BLUE, 2),
    (Size, Size.SMALL, "s"),
    (Point, Point.ORIGIN, "ORIGIN"),
    (Optional[UUID], ID, str(ID)),  # noqa: UP045
    (UUID | None, None, None),
    (Annotated[date | None, "a note"], date(2026, 3, 1), "2026-03-01"),
    (list[UUID], [ID], [str(ID)]),
    (list[UUID | None], [None, ID], [None, str(ID)]),
    (tuple[int, date], (1, date(2026, 3, 1)), [1, "2026-03-01"]),
    (tuple[int, ...], (1, 2, 3), [1, 2, 3]),
    (tuple, (1, "a"), [1, "a"]),
    (set[int], {3, 1, 2}, [1, 2, 3]),
    (frozenset[UUID], frozenset({ID}), [str(ID)]),
    (set, {"b", "a"}, ["a", "b"]),
    (dict[str, Decimal], {"a": Decimal(1)}, {"a": "1"}),
    (dict[str, list[date]], {"a": [date(2026, 3, 1)]}, {"a": ["2026-03-01"]}),
    (Price, PRICE, {"amount": "1.10", "currency": "EUR"}),
    (
        Order,
        Order(ID, [PRICE], Order(ID), {"k": 1}),
        {
            "pk": str(ID),
            "prices": [{"amount": "1.10", "currency": "EUR"}],
            "parent": {"pk": str(ID), "prices": [], "parent": None, "note": None},
            "note": {"k": 1},
        },
    ),
    ("Price | None", PRICE, {"amount": "1.10", "currency": "EUR"}),
]


@pytest.mark.parametrize(("annotation", "value", "stored"), CASES, ids=lambda case: str(case)[:40])
def test_a_value_is_stored_as_json_and_read_back(annotation: Any, value: Any, stored: Any) -> None:
    types = _types(annotation)
    for args, kwargs in (((value,), {}), ((), {"value": value})):
        as_json, named = types.to_json("t", args, kwargs)
        assert [*as_json, *named.values()] == [stored]
        assert types.to_json("t", as_json, named) == (as_json, named)
        read, read_named = types.from_json("t", *json.loads(json.dumps([as_json, named])))
        (found,) = [*read, *read_named.values()]
        assert (found, type(found)) == (value, type(value))
        assert types.from_json("t", read, read_named) == (read, read_named)


ACCEPTED: list[tuple[Any, Any, Any]] = [
    (Decimal, 5, Decimal(5)),
    (Decimal, 0.1, Decimal("0.1")),
    (timedelta, 90, timedelta(seconds=90)),
    (set[int], [2, 2], {2}),
    (tuple[int, int], [1, 2], (1, 2)),
    (Price, {"amount": 1}, Price(Decimal(1))),
    (date, None, None),
]


@pytest.mark.parametrize(("annotation", "given_", "expected"), ACCEPTED)
def test_the_json_form_is_accepted_at_the_call(annotation: Any, given_: Any, expected: Any) -> None:
    stored, _ = _types(annotation).to_json("t", (given_,), {})
    assert _types(annotation).from_json("t", stored, {})[0] == [expected]


REFUSED: list[tuple[Any, Any, str]] = [
    (UUID, "secret", "argument 'value' is a str, and not a UUID or its text"),
    (UUID, 7, "is an int, and not a UUID"),
    (Decimal, "secret", "is a str, and not a Decimal"),
    (Decimal, True, "is a bool, and not a Decimal"),
    (date, AT, r"is a datetime, whose time would be lost: pass value.date\(\)"),
    (date, "yesterday", "is a str, and not a date or its text in ISO 8601"),
    (time, time(1, tzinfo=ZoneInfo("Europe/Berlin")), "a time with a zone"),
    (timedelta, "1", "a str, and not a timedelta or a number of seconds"),
    (timedelta, timedelta(days=999_999_999, microseconds=1), "cannot represent exactly"),
    (Path, 7, "is an int, and not a Path"),
    (bytes, "secret!", "is a str, and not bytes or their text in base64"),
    (bytes, "secre", "is a str, and not bytes or their text in base64"),
    (bytes, bytearray(b"a"), "is a bytearray, and not bytes"),
    (list[bytes], [b"a", 7], r"argument 'value'\[1\] is an int, and not bytes"),
    (Color, "green", "is a str, and not a Color or one of its values"),
    (Point, [0, 0], "is a list, and not a Point or one of its names"),
    (list[UUID], "abc", r"is a str, and not a list: pass list\(value\)"),
    (list[UUID], [ID, 7], r"argument 'value'\[1\] is an int"),
    (set[int], {"a": 1}, "is a dict, and not a set"),
    (tuple[int, int], [1], "has 1 items instead of 2"),
    (dict[str, date], {"a": 1}, r"argument 'value'\['a'\] is an int"),
    (Price, {"amount": "1", "colour": 1}, "has 'colour', which is no field of Price"),
    (Price, {}, "is no Price: it lacks 'amount'"),
    (Price, {"amount": "x"}, r"argument 'value'\['amount'\] is a str"),
    (Price, Order(ID), "is an Order, and not a Price or a dict of its fields"),
]


@pytest.mark.parametrize(("annotation", "value", "reason"), REFUSED)
def test_other_values_are_refused_without_the_value_in_the_message(
    annotation: Any, value: Any, reason: str
) -> None:
    with pytest.raises(UnserializableArguments, match=f"^t: .*{reason}") as refused:
        _types(annotation).to_json("t", (value,), {})
    assert "secret" not in str(refused.value)
    if not isinstance(value, date | timedelta | time | Order):
        with pytest.raises(InvalidArguments, match=f"^t: .*{reason}"):
            _types(annotation).from_json("t", (value,), {})


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        int,
        str,
        list,
        list[int],
        dict,
        dict[str, int],
        int | UUID,
        object,
        "Unknown",
        "1 +",
        bool,
    ],
)
def test_other_annotations_convert_nothing(annotation: Any) -> None:
    assert not _types(annotation).converts
    assert _types(annotation).to_json("t", (["x"],), {}) == ((["x"],), {})


def test_each_kind_of_parameter_has_its_type() -> None:
    def function(
        self: Any, first: date, /, second: UUID, *rest: Decimal, third: Path, **more: timedelta
    ) -> None: ...

    types = ArgumentTypes(signature_of(function, bound=True), function)
    args = (date(2026, 1, 1), ID, Decimal(1), Decimal(2))
    kwargs = {"third": Path("a"), "other": timedelta(1)}
    stored = types.to_json("t", args, kwargs)
    assert stored == (("2026-01-01", str(ID), "1", "2"), {"third": "a", "other": 86400})
    assert types.from_json("t", *stored) == (list(args), kwargs)


def test_references_to_results_stay_until_they_are_resolved() -> None:
    reference = {"$result": str(ID), "path": []}
    for annotation, value in (
        (date, reference),
        (list[date], [reference, "2026-01-01"]),
        (set[date], reference),
        (tuple[date, int], [reference, 1]),
        (dict[str, date], {"a": reference}),
        (Price, {"amount": reference, "currency": reference}),
        (Price, reference),
    ):
        assert _types(annotation).to_json("t", (value,), {}, refers=True) == ((value,), {})
    with pytest.raises(UnserializableArguments):
        _types(date).to_json("t", (reference,), {})


@given(st.datetimes(timezones=st.timezones()), st.decimals(allow_nan=False), st.timedeltas())
def test_values_survive(at: datetime, amount: Decimal, span: timedelta) -> None:
    for annotation, value in ((datetime, at), (Decimal, amount), (timedelta, span)):
        types = _types(annotation)
        try:
            stored, _ = types.to_json("t", (value,), {})
        except UnserializableArguments:
            assert annotation is timedelta
            continue
        ((found,), _) = types.from_json("t", json.loads(json.dumps(stored)), {})
        if isinstance(value, datetime):  # Python compares times of a repeated hour as unequal
            found, value = found.astimezone(UTC), value.astimezone(UTC)
        assert found == value
