"""Nodes are placed in layers after their upstreams, cycles are broken, and the critical path is the
longest.
"""

from __future__ import annotations

import sys
from itertools import pairwise

from hypothesis import given

from django_durable_tasks.workflows.diagrams import Diagram, layered
from tests.repetitions import rows
from tests.unit.diagrams.graphs import diagram, diagrams, edge, node


def _layers(drawn: Diagram) -> list[str]:
    graph = layered(drawn)
    return [" ".join(graph.nodes[place].id for place in row) for row in graph.layers()]


def _critical(drawn: Diagram) -> str:
    graph = layered(drawn)
    return " ".join(graph.nodes[place].id for place in graph.critical)


def test_a_node_is_placed_after_the_longest_path_to_it() -> None:
    assert _layers(diagram("a b c d e", "a>b b>c a>c c>d")) == ["a e", "b", "c", "d"]


def test_page_nine_is_sorted_before_page_ten() -> None:
    assert _layers(diagram([node("x", label="page 10"), node("y", label="page 9")])) == ["y x"]


def test_numbers_larger_than_any_integer_type_are_sorted() -> None:
    assert _layers(diagram([node("b", label="9" * 6_000), node("a", label="8" * 6_000)])) == ["a b"]


@given(diagrams(cycles=True))
def test_every_edge_that_closes_no_cycle_leads_to_a_higher_layer(drawn: Diagram) -> None:
    graph = layered(drawn)
    assert len(graph.nodes) == len(drawn.nodes)
    assert len(graph.edges) == len(drawn.edges)
    assert all(graph.layer[source] < graph.layer[target] for source, target in graph.kept())


@given(diagrams(cycles=True))
def test_every_layer_except_the_first_depends_on_the_previous_one(drawn: Diagram) -> None:
    graph = layered(drawn)
    held = {(target, graph.layer[source]) for source, target in graph.kept()}
    assert all(depth == 0 or (place, depth - 1) in held for place, depth in enumerate(graph.layer))


@given(diagrams())
def test_no_edge_of_an_acyclic_graph_is_reversed(drawn: Diagram) -> None:
    assert not layered(drawn).broken


def test_a_cycle_is_broken_at_the_edge_that_closes_it() -> None:
    graph = layered(diagram("a b c d", "a>b b>c c>d d>b"))
    assert [graph.edges[place].source for place in graph.broken] == ["d"]
    assert _layers(diagram("a b c d", "a>b b>c c>d d>b")) == ["a", "b", "c", "d"]


def test_a_self_edge_is_a_cycle() -> None:
    assert len(layered(diagram("a", "a>a")).broken) == 1


def test_a_chain_of_fifty_thousand_needs_no_deep_recursion() -> None:
    count = rows(50_000)
    assert count > 2 * sys.getrecursionlimit()
    chain = diagram(
        [node(f"n{at}") for at in range(count)],
        [edge(f"n{at}>n{at + 1}") for at in range(count - 1)],
    )
    assert len(layered(chain).critical) == count


def test_an_edge_to_an_unknown_task_is_kept_separately() -> None:
    graph = layered(diagram("a", "a>z z>a"))
    assert [found.target for found in graph.outside] == ["z", "a"]
    assert not graph.edges


def test_the_critical_path_is_the_longest_by_measured_duration() -> None:
    nodes = [
        node("a", seconds=1),
        node("b", seconds=2),
        node("c", seconds=2),
        node("d", seconds=9),
        node("e"),
    ]
    assert _critical(diagram(nodes, "a>b b>c a>d d>e")) == "a d e"


def test_without_durations_the_critical_path_has_the_most_nodes() -> None:
    assert _critical(diagram("a b c d", "a>d a>b b>c")) == "a b c"


def test_of_equally_long_paths_the_one_with_more_nodes_or_else_the_first_is_critical() -> None:
    assert (
        _critical(diagram([node("a", seconds=1), node("b"), node("c", seconds=0)], "a>b b>c a>c"))
        == "a b c"
    )
    assert _critical(diagram("a b c", "a>c a>b")) == "a b"


def test_contradicting_timestamps_count_as_zero() -> None:
    assert node("a", seconds=-5).microseconds == 0


@given(diagrams(cycles=True, most=9))
def test_no_path_is_longer_than_the_critical_one(drawn: Diagram) -> None:
    graph = layered(drawn)
    kept = set(graph.kept())

    def weigh(path: tuple[int, ...]) -> tuple[int, int]:
        return sum(graph.nodes[place].microseconds or 0 for place in path), len(path)

    paths: list[tuple[int, ...]] = [(place,) for place in range(len(graph.nodes))]
    for path in paths:
        paths.extend((*path, target) for source, target in sorted(kept) if source == path[-1])
    assert weigh(graph.critical) == max(map(weigh, paths), default=(0, 0))
    assert all(pair in kept for pair in pairwise(graph.critical))
