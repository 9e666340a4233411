"""The layout: boxes do not overlap, frames contain exactly their own boxes, and edges cross no box."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings

from django_durable_tasks.diagrams.layout import Drawing, Rectangle, drawn
from django_durable_tasks.diagrams.model import Diagram
from django_durable_tasks.diagrams.outline import collapsed, layered
from tests.unit.diagrams.graphs import diagram, diagrams, edge, large, node

WIDTH, HEIGHT = 150, 46


def _drawing(of: Diagram) -> Drawing:
    return drawn(collapsed(layered(of)), WIDTH, HEIGHT)


def _overlap(one: Rectangle, other: Rectangle) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def _holds(outer: Rectangle, inner: Rectangle) -> bool:
    return (
        outer.x <= inner.x
        and outer.y <= inner.y
        and inner.x + inner.width <= outer.x + outer.width
        and inner.y + inner.height <= outer.y + outer.height
    )


def _spot(drawing: Drawing, label: str) -> Rectangle:
    labels = [box.label for box in drawing.outline.boxes]
    return drawing.boxes[labels.index(label)]


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_no_two_boxes_overlap(of: Diagram) -> None:
    drawing = _drawing(of)
    assert len(drawing.boxes) == len(of.nodes)
    assert not [pair for pair in combinations(drawing.boxes, 2) if _overlap(*pair)]


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_every_edge_leads_forward_from_box_to_box(of: Diagram) -> None:
    drawing = _drawing(of)
    axis = 1 if drawing.downwards else 0
    for line, points in zip(drawing.outline.lines, drawing.lines, strict=True):
        way = [point[axis] for point in points]
        assert way == sorted(way, reverse=line.broken)
        source, target = drawing.boxes[line.source], drawing.boxes[line.target]
        assert way[0] in {source.x, source.x + WIDTH, source.y, source.y + HEIGHT}
        assert way[-1] in {target.x, target.x + WIDTH, target.y, target.y + HEIGHT}
        assert (
            line.broken
            or drawing.outline.boxes[line.source].layer < drawing.outline.boxes[line.target].layer
        )


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_no_edge_crosses_a_box_on_its_straight_parts(of: Diagram) -> None:
    drawing = _drawing(of)
    for points, box in product(drawing.lines, drawing.boxes):
        # Between two points of one layer an edge is straight; from layer to layer there is no box.
        for (x, y), (to_x, to_y) in list(pairwise(points))[1:-1:2]:
            run = Rectangle(min(x, to_x), min(y, to_y), abs(x - to_x) or 1, abs(y - to_y) or 1)
            assert not _overlap(run, box)


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_a_frame_contains_exactly_its_own_boxes(of: Diagram) -> None:
    drawing = _drawing(of)
    for frame in drawing.frames:
        for box, spot in zip(drawing.outline.boxes, drawing.boxes, strict=True):
            inside = box.group[: len(frame.path)] == frame.path
            assert _holds(frame.around, spot) if inside else not _overlap(frame.around, spot)
    for one, other in combinations(drawing.frames, 2):
        if other.path[: len(one.path)] == one.path:
            assert _holds(one.around, other.around)
        else:
            assert not _overlap(one.around, other.around)


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_everything_lies_within_the_diagram(of: Diagram) -> None:
    drawing = _drawing(of)
    whole = Rectangle(0, 0, drawing.width, drawing.height)
    assert all(_holds(whole, box) for box in drawing.boxes)
    assert all(_holds(whole, frame.around) for frame in drawing.frames)
    assert all(
        0 <= x <= drawing.width and 0 <= y <= drawing.height
        for line in drawing.lines
        for x, y in line
    )


def test_two_hundred_boxes_in_nested_sub_workflows_do_not_overlap() -> None:
    drawing = _drawing(large(200, 390, names=9, groups=7))
    assert len(drawing.boxes) == 200
    assert not [pair for pair in combinations(drawing.boxes, 2) if _overlap(*pair)]


def test_a_chain_is_a_straight_line() -> None:
    drawing = _drawing(diagram("a b c d", "a>b b>c c>d"))
    assert len({box.y for box in drawing.boxes}) == 1


@pytest.mark.parametrize("wide", [3, 12])
def test_a_fan_out_is_centered(wide: int) -> None:
    pages = " ".join(f"p{at}" for at in range(wide))
    edges = " ".join(f"first>p{at} p{at}>last" for at in range(wide))
    drawing = _drawing(diagram(f"first last {pages}", edges))
    middle = (_spot(drawing, "p0").y + _spot(drawing, f"p{wide - 1}").y) / 2
    for end in ("first", "last"):
        assert abs(_spot(drawing, end).y - middle) <= HEIGHT


def test_a_wide_graph_is_drawn_rightwards_and_a_long_one_downwards() -> None:
    wide = diagram(
        "a " + " ".join(f"p{at}" for at in range(12)), " ".join(f"a>p{at}" for at in range(12))
    )
    long = diagram(
        " ".join(f"p{at}" for at in range(15)), " ".join(f"p{at}>p{at + 1}" for at in range(14))
    )
    assert not _drawing(wide).downwards
    assert _drawing(long).downwards


def test_edges_do_not_cross_without_need() -> None:
    drawing = _drawing(diagram("a b c x y z", "a>z b>y c>x"))
    order = sorted("abc", key=lambda label: _spot(drawing, label).y)
    assert sorted("zyx", key=lambda label: _spot(drawing, label).y) == [
        "zyx"["abc".index(label)] for label in order
    ]


def test_boxes_are_reordered_to_avoid_a_crossing() -> None:
    drawing = _drawing(diagram("a b c p q", "a>p a>q b>p c>q"))
    order = sorted("abc", key=lambda label: _spot(drawing, label).y)
    assert order[1] == "a"
    assert (order[0] == "b") == (_spot(drawing, "p").y < _spot(drawing, "q").y)


def test_an_edge_out_of_a_sub_workflow_is_straight_from_its_box() -> None:
    inside = [node(known, group="g") for known in ("s", "p0", "p1", "p2", "p3", "p4")]
    edges = " ".join(f"s>p{at}" for at in range(5))
    drawing = _drawing(
        diagram([*inside, node("z")], [edge(word) for word in f"{edges} p4>z".split()])
    )
    assert _spot(drawing, "z").y == _spot(drawing, "p4").y


def test_tasks_without_dependencies_are_arranged_in_rows() -> None:
    drawing = _drawing(diagram(" ".join(f"p{at}" for at in range(30))))
    assert drawing.width < 1_300
    assert drawing.height < 1_300


def test_a_reversed_edge_is_drawn_backwards() -> None:
    drawing = _drawing(diagram("a b c", "a>b b>c c>a"))
    backwards = [
        points
        for line, points in zip(drawing.outline.lines, drawing.lines, strict=True)
        if line.broken
    ]
    assert len(backwards) == 1
    assert backwards[0][0][0] > backwards[0][-1][0]


def test_the_critical_path_is_marked_on_boxes_and_edges() -> None:
    nodes = [node("a"), node("b", seconds=5), node("c", seconds=9), node("d")]
    outline = _drawing(diagram(nodes, [edge("a>b"), edge("a>c"), edge("c>d"), edge("b>d")])).outline
    assert [box.label for box in outline.boxes if box.critical] == ["a", "c", "d"]
    ends = [
        (outline.boxes[line.source].label, outline.boxes[line.target].label)
        for line in outline.lines
        if line.critical
    ]
    assert ends == [("a", "c"), ("c", "d")]
