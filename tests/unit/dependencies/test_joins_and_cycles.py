"""The rules of dependencies: met edges, joins, the status of a task, cycles, layers, references,
the outcome of a run.
"""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import TERMINAL, DependencyType, OnUpstreamFailure, WorkflowStatus
from django_durable_tasks.dependencies.rules import (
    DELETED,
    MARK,
    EdgeCounts,
    JoinDecision,
    Reference,
    check_size,
    cycle_in,
    edge_outcome,
    join_decision,
    layers,
    met,
    needed,
    needed_of,
    references_in,
    referred,
    resolved,
    written,
)
from django_durable_tasks.exceptions import InvalidOption, InvalidReference, ResultTooLarge
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.option_values import chosen
from django_durable_tasks.workflows.builder import verdict

OUTCOMES = sorted({*map(str, TERMINAL), DELETED})
_ALL_WAYS = list(itertools.product(DependencyType, OUTCOMES, OnUpstreamFailure))
tallies = st.builds(EdgeCounts, *[st.integers(0, 4)] * 4)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_edge_is_met_by_the_ending_it_waits_for_only(outcome: str) -> None:
    assert met(DependencyType.MUST_FINISH, outcome)
    assert met(DependencyType.MUST_SUCCEED, outcome) == (outcome == "SUCCESS")
    assert met(DependencyType.MUST_FAIL, outcome) == (outcome == "FAILED")


@pytest.mark.parametrize(("kind", "outcome", "policy"), _ALL_WAYS)
def test_a_resolved_edge_keeps_waiting_only_if_it_is_unmet_and_its_policy_is_wait(
    kind: str, outcome: str, policy: str
) -> None:
    found = edge_outcome(kind, outcome, policy)
    assert found.met == (met(kind, outcome) or policy == "RUN")
    assert found.resolved == (found.met or policy != "WAIT")


@given(st.one_of(st.none(), st.integers(1, 6)), tallies, st.sampled_from(OnUpstreamFailure))
def test_a_task_is_released_when_it_needs_nothing_and_unreachable_when_it_never_can_be(
    join: int | None, tally: EdgeCounts, policy: str
) -> None:
    edges = tally.unresolved + tally.met + tally.unmet
    wants = edges if join is None else join
    lost = tally.met + tally.unresolved < wants
    decided = join_decision(join, tally, policy)
    assert (decided in (JoinDecision.SKIP, JoinDecision.FAIL)) == lost
    assert (decided == JoinDecision.FAIL) == (lost and policy == "FAIL")
    if not lost:
        assert needed(join, tally) == max(0, wants - tally.met) + tally.gates
        assert (decided == JoinDecision.RELEASE) == (tally.met >= wants and not tally.gates)


@pytest.mark.parametrize(
    ("join", "edges", "wants"),
    [
        ("ALL", 0, None),
        ("ALL", 5, None),
        ("ANY", 1, None),
        ("ANY", 5, 1),
        (2, 5, 2),
        (5, 5, None),
        (1, 1, None),
    ],
)
def test_a_join_is_a_number_of_edges_or_all_of_them(
    join: Any, edges: int, wants: int | None
) -> None:
    assert needed_of(join, edges) == wants


@pytest.mark.parametrize(
    ("join", "edges"),
    [
        (3, 2),
        ("ANY", 0),
        (1, 0),
        (0, 3),
        (-1, 3),
        (True, 3),
        (1.0, 3),
        ("any", 3),
        (None, 3),
        ("2", 3),
    ],
)
def test_an_invalid_join_or_one_that_needs_more_than_its_edges_is_refused(
    join: Any, edges: int
) -> None:
    with pytest.raises(InvalidOption, match="join="):
        needed_of(join, edges)


@pytest.mark.parametrize(
    ("value", "hint"), [("MUST_SUCEED", "MUST_SUCCEED"), ("must_fail", "MUST_FAIL"), (7, "one of")]
)
def test_an_unknown_name_is_refused_with_the_nearest(value: object, hint: str) -> None:
    with pytest.raises(InvalidOption, match=hint):
        chosen("after", value, DependencyType)


# Cycles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 7, 100, 5_000])
def test_a_cycle_of_any_length_is_found_with_its_path(length: int) -> None:
    message = {node: [(node + 1) % length] for node in range(length)}
    around = {f"{side} {node}": [0] for side in ("left", "right") for node in range(3)}
    path = cycle_in({**around, **message})
    assert path[0] == path[-1]
    assert len(path) == length + 1
    assert set(path) == set(range(length))
    # In the order of their dependencies: each one is upstream of the next.
    assert all(upper in message[lower] for upper, lower in itertools.pairwise(path))


graphs = st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=3), max_size=8)


@given(graphs)
def test_an_acyclic_graph_is_split_into_layers_and_a_cyclic_one_is_not(
    graph: dict[int, list[int]],
) -> None:
    path, found = cycle_in(graph), layers(graph)
    laid = [node for layer in found for node in layer]
    assert len(laid) == len(set(laid))
    if path:
        assert path[0] == path[-1]
        assert all(upper in graph[lower] for upper, lower in itertools.pairwise(path))
        assert set(path).isdisjoint(laid)
        return
    assert set(laid) == set(graph)
    at = {node: number for number, layer in enumerate(found) for node in layer}
    assert all(at[upper] < at[node] for node in graph for upper in graph[node] if upper in graph)


def test_a_diamond_is_not_a_cycle() -> None:
    assert cycle_in({4: [2, 3], 2: [1], 3: [1], 1: [], 0: [9, 9]}) == []


# References ---------------------------------------------------------------------------------------

ID = uuid.UUID(int=7)


def _reference(*path: str | int) -> Reference:
    found = Reference(0, None)
    for part in path:
        found = found[part]
    return found


def test_references_are_found_and_written_at_any_position() -> None:
    arguments = {
        "deep": [{"in": ({"side": _reference("rows", 0)},)}],
        "plain": 1,
        "top": _reference(),
    }
    assert references_in(arguments) == [_reference("rows", 0), _reference()]
    row = written(arguments, {0: ID})
    assert row["deep"] == [{"in": [{"side": {MARK: str(ID), "path": ["rows", 0]}}]}]
    assert referred(row) == {ID}
    assert resolved(row, {ID: {"rows": ["x"]}}) == {
        "deep": [{"in": [{"side": "x"}]}],
        "plain": 1,
        "top": {"rows": ["x"]},
    }


@pytest.mark.parametrize("path", [(), ("rows",), ("rows", 0)])
def test_a_task_without_a_result_refers_to_nothing(path: tuple[str | int, ...]) -> None:
    assert resolved(written([_reference(*path)], {0: ID}), {}) == [None]
    assert resolved(written([_reference(*path)], {0: ID}), {ID: None}) == [None]


@pytest.mark.parametrize(
    ("result", "path"),
    [
        ({"rows": []}, ("rows", 0)),
        ({}, ("rows",)),
        ([1], ("rows",)),
        ({"rows": None}, ("rows", "x")),
        (5, (0,)),
    ],
)
def test_a_missing_part_of_a_result_is_named(result: Any, path: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidReference, match=rf"there is no {path[-1]!r} in what it returned"):
        resolved(written(_reference(*path), {0: ID}), {ID: result})


@pytest.mark.parametrize("arguments", [{MARK: 1}, [{"deep": {MARK: str(ID), "path": []}}]])
def test_a_key_that_looks_like_a_reference_is_refused(arguments: Any) -> None:
    with pytest.raises(InvalidReference, match="kept for references"):
        written([arguments, _reference()], {0: ID})


def test_a_result_that_looks_like_a_reference_stays_unchanged() -> None:
    alike = {MARK: str(uuid.UUID(int=9)), "path": ["x"]}
    assert resolved(
        written([_reference()], {0: ID}), {ID: alike, uuid.UUID(int=9): {"x": "stolen"}}
    ) == [alike]


@pytest.mark.parametrize("key", [True, 1.5, None, ("a",)])
def test_a_part_is_selected_by_a_string_or_a_number(key: Any) -> None:
    with pytest.raises(InvalidReference, match="string or a whole number"):
        _reference()[key]
    with pytest.raises(InvalidReference, match="iterated over"):
        list(_reference())


def test_results_may_be_as_large_as_the_limit() -> None:
    check_size(10, 10)
    with pytest.raises(ResultTooLarge, match="11 bytes, at most 10"):
        check_size(11, 10)


# The outcome of a run -----------------------------------------------------------------------------

counts = st.fixed_dictionaries({column: st.integers(0, 2) for column in COUNTS.values()})


@given(counts, st.integers(0, 2), st.booleans(), st.booleans())
def test_a_run_is_open_until_all_tasks_have_ended_and_then_has_the_worst_outcome(
    ended: dict[str, int], missing: int, cancelled: bool, overdue: bool
) -> None:
    stands = verdict(ended, sum(ended.values()) + missing, cancelled=cancelled, overdue=overdue)
    if missing:
        assert stands == WorkflowStatus.RUNNING
    elif ended["failed"] or ended["expired"] or overdue:
        assert stands == WorkflowStatus.FAILED
    else:
        assert (stands == WorkflowStatus.CANCELLED) == bool(cancelled or ended["cancelled"])
