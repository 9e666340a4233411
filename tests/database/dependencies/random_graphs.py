"""Random graphs, and processes that die at random statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connection
from hypothesis import strategies as st

from django_durable_tasks.choices import DependencyType, Gate, OnUpstreamFailure
from django_durable_tasks.store import tables

kinds, policies = st.sampled_from([*DependencyType]), st.sampled_from([*OnUpstreamFailure])
picks = st.integers(0, 10_000)
some = st.lists(picks, min_size=1, max_size=3)
points = st.one_of(st.none(), st.none(), st.integers(0, 15))
"""The statement at which the process dies, if any. The operation is then repeated by another
process.
"""
Edges = dict[int, tuple[str, str | None]]


class Crash(OperationalError):
    """The process died."""


@contextmanager
def dying_at(point: int | None) -> Iterator[None]:
    """Raise Crash instead of executing the statement at this point.

    A rollback is no such point: the database does it for a process that dies, and a failed rollback
    would leave the connection of the test unusable.
    """
    left = point
    rolling_back = False

    def statement(execute: Callable[..., Any], sql: str, *words: Any) -> Any:
        nonlocal left, rolling_back
        released = rolling_back and sql.startswith("RELEASE")  # Django does it after a rollback
        rolling_back = sql.startswith("ROLLBACK")
        if left is not None and not rolling_back and not released:
            left = left - 1 if left else None
            if left is None:
                raise Crash
        return execute(sql, *words)

    with connection.execute_wrapper(statement):
        yield


def whole(act: Callable[[], Any]) -> Callable[[], Any]:
    """Return the function as one transaction, for operations that cannot be repeated when half
    done.
    """

    def acted() -> Any:
        with tables.atomic():
            return act()

    return acted


@st.composite
def shapes(draw: Any, above: int) -> dict[str, Any]:
    """Draw the dependencies of one task: some of the `above` tasks before it, a join, a policy,
    gates.
    """
    ups = draw(st.sets(st.integers(0, above - 1), max_size=4)) if above else set()
    wants = {
        up: (str(draw(kinds)), draw(st.one_of(st.none(), policies.map(str)))) for up in sorted(ups)
    }
    join = (
        draw(st.one_of(st.just("ALL"), st.just("ANY"), st.integers(1, len(ups)))) if ups else "ALL"
    )
    gates = (
        draw(st.sets(st.sampled_from([*Gate]), max_size=2))
        if draw(st.integers(0, 4)) == 0
        else set()
    )
    return {
        "edges": wants,
        "join": join,
        "policy": str(draw(policies)),
        "gates": sorted(map(str, gates)),
    }


def among(shape: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a drawn shape for a graph of `number` tasks. Upstreams beyond it are replaced by
    existing ones.
    """
    wants = {up % number: want for up, want in shape["edges"].items()}
    join = shape["join"]
    return {
        **shape,
        "edges": wants,
        "join": join if isinstance(join, str) else min(join, len(wants)),
    }


@st.composite
def graphs(draw: Any) -> list[dict[str, Any]]:
    """Draw a graph, in which each task depends on earlier ones only."""
    return [draw(shapes(number)) for number in range(draw(st.integers(2, 9)))]
