"""Every shard is served, all nodes compute the same assignment, and a joining or leaving node moves
only its own shards.
"""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.states.demand import parse_shards, shards_of, spell_shards
from django_durable_tasks.task_values import SHARDS

ALL = frozenset(range(SHARDS))
some_nodes = st.lists(st.uuids(), min_size=1, max_size=9, unique=True)


def _map(nodes: list[uuid.UUID]) -> dict[uuid.UUID, frozenset[int]]:
    free = dict.fromkeys(nodes, None)
    return {node: shards_of(node, free) for node in nodes}


@given(some_nodes)
def test_each_shard_is_served_by_exactly_one_node(nodes: list[uuid.UUID]) -> None:
    served = sorted(shard for shards in _map(nodes).values() for shard in shards)
    assert served == sorted(ALL)


@given(some_nodes, st.uuids())
def test_a_joining_node_takes_shards_and_moves_no_others(
    nodes: list[uuid.UUID], late: uuid.UUID
) -> None:
    if late in nodes:
        return
    before, after = _map(nodes), _map([*nodes, late])
    for node in nodes:
        assert before[node] - after[node] <= after[late]
        assert after[node] <= before[node]


def test_the_shards_are_divided_about_evenly() -> None:
    nodes = [uuid.UUID(int=number) for number in range(1, 5)]
    assert all(6 <= len(shards) <= 28 for shards in _map(nodes).values())


def test_a_single_node_and_an_unlisted_node_serve_everything() -> None:
    alone = uuid.uuid4()
    assert shards_of(alone, {alone: None}) == ALL
    assert shards_of(alone, {}) == ALL


def test_a_node_with_configured_shards_keeps_them_and_the_others_share_the_rest() -> None:
    assigned, free, other = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)
    nodes = {assigned: frozenset(range(32)), free: None, other: None}
    assert shards_of(assigned, nodes) == frozenset(range(32))
    assert shards_of(free, nodes) | shards_of(other, nodes) == frozenset(range(32, SHARDS))


def test_ranges_are_parsed() -> None:
    assert parse_shards("0-3, 9,62 - 63") == {0, 1, 2, 3, 9, 62, 63}
    assert parse_shards(f"0-{SHARDS - 1}") == ALL


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "64", "0-64", "1,,2", "1.5"])
def test_an_invalid_range_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(InvalidOption, match="shards="):
        parse_shards(text)


@given(st.frozensets(st.integers(0, SHARDS - 1), min_size=1))
def test_shards_are_formatted_as_they_are_parsed(shards: frozenset[int]) -> None:
    assert parse_shards(spell_shards(shards)) == shards


def test_shards_are_formatted_in_the_shortest_form() -> None:
    assert spell_shards([5, 1, 0, 2, 63, 40, 41]) == "0-2,5,40-41,63"
    assert spell_shards([]) == ""
