"""Arguments and results are JSON that every database returns unchanged. Other values are refused
with their position.
"""

from __future__ import annotations

import enum
import inspect
import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import (
    InvalidArguments,
    PayloadTooLarge,
    ResultTooLarge,
    UnserializableArguments,
    UnserializableResult,
)
from django_durable_tasks.registry import CallShape, bind
from django_durable_tasks.tasks.arguments import encode, encode_result

KIB = 1024
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def _encode(
    *args: Any, max_bytes: int = 64 * KIB, max_depth: int = 16, **kwargs: Any
) -> tuple[Any, Any]:
    payload = encode("job", args, kwargs, max_bytes=max_bytes, max_depth=max_depth)
    return json.loads(payload.args), json.loads(payload.kwargs)


def _nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@given(st.lists(values, max_size=4), st.dictionaries(texts, values, max_size=3))
def test_accepted_values_are_returned_unchanged(args: list[Any], kwargs: dict[str, Any]) -> None:
    payload = encode("job", args, kwargs, max_bytes=256 * KIB, max_depth=32)
    assert (json.loads(payload.args), json.loads(payload.kwargs)) == (args, kwargs)


class _Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "argument 1 is nan"),
        (math.inf, "argument 1 is inf"),
        (-math.inf, "argument 1 is -inf"),
        ("a\x00b", "argument 1 holds a NUL"),
        ("\ud800", "argument 1 holds a lone surrogate"),
        (2**63, "argument 1 is an integer beyond 64 bits"),
        (-(2**63) - 1, "argument 1 is an integer beyond 64 bits"),
        ({1: 2}, "argument 1 has the key 1; JSON keys are strings"),
        ({"a\x00": 1}, "a key of argument 1 holds a NUL"),
        ({"\udfff": 1}, "a key of argument 1 holds a lone surrogate"),
        ({"deep": [1, {"er": math.nan}]}, r"argument 1\['deep'\]\[1\]\['er'\] is nan"),
        (b"bytes", "argument 1 is a bytes"),
        ({1, 2}, "argument 1 is a set"),
        (object(), "argument 1 is an object"),
        (datetime(2026, 1, 1, tzinfo=UTC), "isoformat"),
        (1 + 2j, "argument 1 is a complex"),
    ],
    ids=repr,
)
def test_values_that_json_would_change_are_refused_with_their_position(
    value: object, words: str
) -> None:
    with pytest.raises(UnserializableArguments, match=words):
        _encode(value)


def test_a_model_is_refused_with_the_advice_to_pass_its_key() -> None:
    class Invoice:
        pk = 1

    with pytest.raises(UnserializableArguments, match="primary key"):
        _encode(Invoice())


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (UUID(int=1), "UUID"),
        ([UUID(int=1)], "list[UUID]"),
        ({"key": UUID(int=1)}, "dict[str, UUID]"),
        ([[UUID(int=1)]], None),
    ],
    ids=repr,
)
def test_the_annotation_that_an_error_names_fits_the_argument(
    value: object, annotation: str | None
) -> None:
    with pytest.raises(UnserializableArguments) as refused:
        encode(
            "job",
            (value,),
            {},
            max_bytes=1_000,
            max_depth=20,
            signature=inspect.signature(_invoice),
        )
    assert ("annotate" in str(refused.value)) is (annotation is not None)
    assert annotation is None or f"with {annotation}." in str(refused.value)


def _invoice(order: Any, *lines: Any, **notes: Any) -> None: ...


def test_errors_name_the_parameters_of_the_function() -> None:
    signature = inspect.signature(_invoice)

    def refused(*args: Any, **kwargs: Any) -> str:
        with pytest.raises(InvalidArguments) as caught:
            encode("job", args, kwargs, max_bytes=1_000, max_depth=20, signature=signature)
        return str(caught.value)

    class Broken(str):
        __slots__ = ()

        def encode(self, *_: Any) -> bytes:
            raise KeyError

    assert "job: argument 'order' is a set," in refused({1})
    assert "argument 'order'[2] is a set," in refused([1, 2, {3}])
    assert "argument 'order' cannot be read: its code raised KeyError." in refused(Broken("a"))
    assert "argument 3 (*lines) is a set," in refused(1, 2, {1})
    assert "argument 'note' is a set," in refused(1, note={1})
    assert "the name of argument 'a\\x00' holds a NUL" in refused(1, **{"a\x00": 1})
    text = refused("a", "b" * 1_000)
    assert "1,010 bytes of JSON, 1,002 of them argument 2 (*lines), at most 1,000" in text
    assert "10,002 of them argument 'order'," in refused("b" * 10_000, 1)
    assert "with argument 'order'," in refused(["b" * 10_000], 1)


def test_a_lazy_translation_is_refused_with_the_advice_to_pass_its_text() -> None:
    with pytest.raises(UnserializableArguments, match=r"Pass str\(value\)"):
        _encode(gettext_lazy("text"))


def test_named_arguments_are_refused_by_name() -> None:
    with pytest.raises(UnserializableArguments, match="argument 'amount' is nan"):
        _encode(amount=math.nan)


@pytest.mark.parametrize("name", ["a\x00b", "\ud800"])
def test_the_names_of_arguments_are_validated_too(name: str) -> None:
    with pytest.raises(UnserializableArguments, match=r"NUL|surrogate"):
        _encode(**{name: 1})


@pytest.mark.parametrize("edge", [2**63 - 1, -(2**63), 1.5e308, 5e-324, 0, "", True, _Colour.RED])
def test_boundary_values_are_accepted(edge: object) -> None:
    assert _encode(edge) == ([edge], {})


def test_three_thousand_levels_are_refused_without_a_recursion_error() -> None:
    with pytest.raises(UnserializableArguments, match="nested too deep"):
        _encode(_nested(3_000))


def test_depth_counts_from_the_argument() -> None:
    assert _encode(_nested(16)) == ([_nested(16)], {})
    with pytest.raises(UnserializableArguments, match="at most 16 levels"):
        _encode(_nested(17))


@pytest.mark.parametrize("limit", [64 * KIB, 256 * KIB])
def test_size_counts_the_bytes_of_both_texts(limit: int) -> None:
    fits = "x" * (limit - len('[""]') - len("{}"))
    assert _encode(fits, max_bytes=limit) == ([fits], {})
    with pytest.raises(PayloadTooLarge, match=r"PAYLOAD_MAX_BYTES.*primary key"):
        _encode(fits + "x", max_bytes=limit)


def test_non_ascii_characters_count_as_they_are_written() -> None:
    with pytest.raises(PayloadTooLarge):
        _encode("é" * 11_000)


def test_more_than_a_thousand_keys_are_refused() -> None:
    with pytest.raises(UnserializableArguments, match="1,001 keys"):
        _encode({str(number): 0 for number in range(1_001)})


@given(st.floats(min_value=1e15, allow_infinity=False), st.sampled_from([1, -1]))
def test_large_floats_are_written_without_an_exponent_and_returned_unchanged(
    number: float, sign: int
) -> None:
    payload = encode("job", ["1e+5", {"2e+6": sign * number}], {}, max_bytes=64 * KIB, max_depth=16)
    assert json.loads(payload.args) == ["1e+5", {"2e+6": sign * number}]
    assert "e+" not in payload.args.replace("1e+5", "").replace("2e+6", "")


def test_a_tuple_is_written_as_a_list() -> None:
    assert _encode((1, (2,))) == ([[1, [2]]], {})


def _job(day: str, *, dry: bool = False) -> None:
    """The signature that a call must match."""


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "day"),
        (("a", "b"), {}, "too many"),
        (("a",), {"wet": 1}, "wet"),
        (("a",), {"day": "b"}, "day"),
    ],
)
def test_a_call_that_does_not_match_names_the_parameter(
    args: Any, kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidArguments, match=named) as refused:
        bind(inspect.signature(_job), "job", args, kwargs)
    assert "job(day" in str(refused.value)


@given(values)
def test_a_result_is_returned_unchanged(value: Any) -> None:
    text = encode_result("job", value, max_bytes=256 * KIB, max_depth=32)
    assert (None if text is None else json.loads(text)) == value


def test_a_result_that_is_not_json_or_too_large_is_refused() -> None:
    with pytest.raises(UnserializableResult, match="the result is an object"):
        encode_result("job", object(), max_bytes=100, max_depth=16)
    with pytest.raises(ResultTooLarge, match="102 bytes of JSON, at most 101"):
        encode_result("job", "x" * 100, max_bytes=101, max_depth=16)


_names = st.sampled_from("abc")


def _signatures() -> list[inspect.Signature]:
    functions: list[Any] = [
        lambda: None,
        lambda a, b: None,
        lambda a, b=1: None,
        lambda a, /, b: None,
        lambda a=1, /, b=2: None,
        lambda *a: None,
        lambda a, *b: None,
        lambda **a: None,
        lambda a, /, **b: None,
        lambda *, a: None,
        lambda *, a=1, b: None,
        lambda a, *, b=1: None,
        lambda a, *b, c: None,
    ]
    return [inspect.signature(function) for function in functions]


@pytest.mark.parametrize("signature", _signatures(), ids=str)
@given(args=st.lists(st.just(1), max_size=3), kwargs=st.dictionaries(_names, st.just(1)))
def test_a_call_that_fits_by_its_shape_can_be_bound(
    signature: inspect.Signature, args: list[int], kwargs: dict[str, int]
) -> None:
    if CallShape(signature).fits(args, kwargs):
        bind(signature, "task", args, kwargs)


def test_the_usual_calls_fit_by_their_shape() -> None:
    shape = CallShape(inspect.signature(lambda a, b=1: None))
    assert shape.fits([1], {})
    assert shape.fits([1, 2], {})
    assert shape.fits([], {"a": 1})
    assert not shape.fits([], {})
    assert not shape.fits([], {"b": 1})
    assert not shape.fits([1, 2, 3], {})


class _Odd(dict[str, Any]):
    """A dict whose items cannot be read."""

    def items(self) -> Any:
        """Raise."""
        raise LookupError("no items")


class _Pretender:
    """Has the class of another value for isinstance()."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Return the pretended class."""
        return self._kind


_PRETENDERS: tuple[Any, ...] = (
    *(_Pretender(kind) for kind in (str, int, float, bool, list, tuple, dict, type(None))),
    SimpleLazyObject(lambda: "x"),
    SimpleLazyObject(lambda: {"a": 1}),
    SimpleLazyObject(lambda: 1 / 0),
    gettext_lazy("x"),
    _Odd(a=1),
)


_WITHIN: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    lambda x: [1, x],
    lambda x: {"a": x},
    lambda x: [{"b": (x,)}],
)


# By their numbers, because pytest reads the classes of parameters.
@pytest.mark.parametrize("number", range(len(_PRETENDERS)))
@pytest.mark.parametrize("place", range(len(_WITHIN)))
def test_an_object_that_pretends_another_class_is_refused_by_name(number: int, place: int) -> None:
    value = _WITHIN[place](_PRETENDERS[number])
    for args, kwargs in (((value,), {}), ((), {"k": value})):
        with pytest.raises(UnserializableArguments, match="argument"):
            encode("t", args, kwargs, max_bytes=1_000, max_depth=20)
    with pytest.raises(UnserializableResult, match="the result"):
        encode_result("t", value, max_bytes=1_000, max_depth=20)


def test_the_cost_of_refusing_a_huge_value_is_bounded() -> None:
    read = 0

    def counted() -> Iterator[str]:
        nonlocal read
        for _ in range(1_000_000):
            read += 1
            yield "x" * 100

    class Many(list[str]):
        def __iter__(self) -> Iterator[str]:
            return counted()

    for value in (Many(), ["x" * 10_000_000], [[[0] * 9_000] * 9_000] * 9_000):
        with pytest.raises(PayloadTooLarge, match="more than 1,000"):
            encode("t", (value,), {}, max_bytes=1_000, max_depth=20)
        with pytest.raises(ResultTooLarge, match="more than 1,000"):
            encode_result("t", value, max_bytes=1_000, max_depth=20)
    assert read < 200


def test_all_arguments_that_are_not_json_are_named_at_once() -> None:
    """A project that was moved from Celery met them one after the other."""
    day, key = datetime(2026, 3, 1, tzinfo=UTC), UUID(int=1)
    with pytest.raises(UnserializableArguments) as refused:
        _encode(day, 1, key, path=Path("a"), name="x")
    text = str(refused.value)
    assert text.startswith("job: argument 1 is a datetime, which is not JSON.")
    assert text.count("job: ") == 1
    for where in ("argument 3 is a UUID", "argument 'path' is a PosixPath"):
        assert where in text
