"""Above 200 nodes, similar ones share a box. The number of boxes stays small for any graph, and no
node is lost.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_tasks.contrib.diagrams.layout import MOST_BOXES, MOST_LINES, Outline, outlined
from django_durable_tasks.workflows.diagrams import Diagram, draw
from tests.repetitions import repetitions, rows
from tests.unit.diagrams.graphs import diagram, edge, large, node, parallel_chains

MANY = rows(10_000)


def _labels(outline: Outline) -> list[str]:
    return [box.label for box in outline.boxes]


def test_two_hundred_nodes_have_a_box_each_and_more_do_not() -> None:
    names = [f"p{at}" for at in range(200)]
    assert len(outlined(diagram(" ".join(names))).boxes) == 200
    assert _labels(outlined(diagram(" ".join([*names, "one-more"])))) == ["tasks × 201"]


def test_nodes_of_one_name_between_the_same_tasks_share_a_box() -> None:
    outline = outlined(parallel_chains(1_234, 1))
    assert _labels(outline) == ["start", "step0 × 1,234", "end"]
    assert [(line.count, line.source, line.target) for line in outline.lines] == [
        (1_234, 0, 1),
        (1_234, 1, 2),
    ]


def test_parallel_chains_collapse_step_by_step() -> None:
    assert _labels(outlined(parallel_chains(100, 3))) == [
        "start",
        "step0 × 100",
        "step1 × 100",
        "step2 × 100",
        "end",
    ]


def test_nodes_with_different_upstreams_stay_separate() -> None:
    nodes = [node("a", name="a"), node("b", name="b")]
    nodes += [node(f"p{at}", name="page") for at in range(300)]
    outline = outlined(
        diagram(nodes, [edge(f"{'a' if at < 100 else 'b'}>p{at}") for at in range(300)])
    )
    assert sorted(_labels(outline)) == ["a", "b", "page × 100", "page × 200"]


def test_different_sub_workflows_become_a_box_each() -> None:
    nodes = [
        node(f"{part}-{step}", name=f"n{part}-{step}", group=f"part {part}")
        for part in range(9)
        for step in range(40)
    ]
    edges = [edge(f"{part}-{step}>{part}-{step + 1}") for part in range(9) for step in range(39)]
    assert _labels(outlined(diagram(nodes, edges))) == [f"part {part} × 40" for part in range(9)]


def test_many_sub_workflows_of_the_same_steps_collapse_by_step() -> None:
    nodes = [
        node(f"{part}-{step}", name=f"jobs.s{step}", group=f"part {part}")
        for part in range(999)
        for step in range(3)
    ]
    edges = [edge(f"{part}-{step}>{part}-{step + 1}") for part in range(999) for step in range(2)]
    assert _labels(outlined(diagram(nodes, edges))) == ["s0 × 999", "s1 × 999", "s2 × 999"]


def test_a_sub_workflow_that_indirectly_depends_on_itself_is_not_one_box() -> None:
    inner = [node(f"in-{at}", name=f"in{at}", group="part") for at in range(150)]
    outer = [node(f"out-{at}", name=f"out{at}", group="other") for at in range(150)]
    edges = [edge("in-0>out-0"), edge("out-0>in-1")]
    simple = [node(f"alone-{at}", name=f"alone{at}", group="simple") for at in range(150)]
    edges += [edge(f"alone-{at}>alone-{at + 1}") for at in range(149)]
    outline = outlined(diagram([*inner[:30], *outer[:30], *simple], edges))
    assert {"in-0", "out-0", "in-1"} <= {node.id for box in outline.boxes for node in box.nodes}
    assert not [remark for remark in outline.remarks if "cycle" in remark]


def test_a_long_chain_of_different_tasks_becomes_bands_of_layers() -> None:
    count = 1_000
    nodes = [node(f"n{at}", name=f"jobs.n{at}") for at in range(count)]
    outline = outlined(diagram(nodes, [edge(f"n{at}>n{at + 1}") for at in range(count - 1)]))
    assert len(outline.boxes) <= MOST_BOXES
    assert _labels(outline)[:2] == ["layers 1–7 × 7", "layers 8–14 × 7"]


@pytest.mark.parametrize(
    "of",
    [
        large(MANY, 5 * MANY, names=7),
        large(MANY, 5 * MANY, names=MANY),
        large(3_000, 9_000, names=3, groups=40),
        large(201, 15_000, names=201),
    ],
    ids=["few names", "all different", "sub-workflows", "dense"],
)
def test_any_graph_has_few_boxes_and_edges_that_contain_every_node(of: Diagram) -> None:
    for most_lines in (MOST_LINES, 500):
        outline = outlined(of, most_lines)
        assert len(outline.boxes) <= MOST_BOXES
        assert len(outline.lines) <= most_lines
        assert Counter(known.id for box in outline.boxes for known in box.nodes) == Counter(
            n.id for n in of.nodes
        )
        assert all(line.source < line.target for line in outline.lines)


def test_ten_thousand_nodes_are_drawn_small_and_complete_in_json() -> None:
    of = large(MANY, 5 * MANY, names=50)
    for known, most in {"mermaid": 50_000, "svg": 1_500_000}.items():
        assert len(draw(of, known)) < most
    kept = json.loads(draw(of, "json"))
    assert (len(kept["nodes"]), len(kept["edges"])) == (MANY, 5 * MANY)


def test_a_dense_graph_is_drawn_without_transitive_edges() -> None:
    everything = diagram(
        " ".join(f"n{at}" for at in range(60)),
        " ".join(f"n{a}>n{b}" for b in range(60) for a in range(b)),
    )
    outline = outlined(everything)
    assert len(outline.lines) == 59
    assert any("1,711 lines" in note for note in outline.remarks)


def test_the_status_of_a_box_is_the_most_urgent_one() -> None:
    nodes = [node(f"p{at}", "FAILED" if at == 77 else "SUCCESS", name="page") for at in range(300)]
    (box,) = outlined(diagram(nodes)).boxes
    assert box.status == "FAILED"
    assert dict(box.counts) == {"SUCCESS": 299, "FAILED": 1}


@given(st.integers(201, 320), st.integers(1, 40), st.integers(0, 6), st.integers(0, 999))
@settings(deadline=None, max_examples=repetitions(30))
def test_random_large_graphs_stay_under_the_limit(
    count: int, names: int, groups: int, seed: int
) -> None:
    outline = outlined(large(count, 2 * count, names, groups, seed))
    assert len(outline.boxes) <= MOST_BOXES
    assert sum(len(box.nodes) for box in outline.boxes) == count
    assert all(line.source < line.target for line in outline.lines)
