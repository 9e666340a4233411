"""The layout: boxes do not overlap, frames contain exactly their own boxes, and edges cross no box."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import NamedTuple

import pytest
from hypothesis import given, settings

from django_durable_tasks.contrib.diagrams.layout import Drawing, laid_out, outlined
from django_durable_tasks.workflows.diagrams import Diagram
from tests.unit.diagrams.graphs import diagram, diagrams, edge, large, node

WIDTH, HEIGHT = 150, 46


class Rectangle(NamedTuple):
    """A rectangle by its upper left corner."""

    x: float
    y: float
    width: float
    height: float


def _drawing(of: Diagram) -> Drawing:
    return laid_out(outlined(of), WIDTH, HEIGHT)


def _boxes(drawing: Drawing) -> dict[int, Rectangle]:
    return {at: Rectangle(*corner, WIDTH, HEIGHT) for at, corner in drawing.boxes.items()}


def _frames(drawing: Drawing) -> dict[tuple[str, ...], Rectangle]:
    return {path: Rectangle(*corner, *size) for path, (corner, size) in drawing.frames.items()}


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


def _spot(of: Diagram, label: str) -> Rectangle:
    labels = [box.label for box in outlined(of).boxes]
    return _boxes(_drawing(of))[labels.index(label)]


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_no_two_boxes_overlap(of: Diagram) -> None:
    boxes = _boxes(_drawing(of))
    assert len(boxes) == len(of.nodes)
    assert not [pair for pair in combinations(boxes.values(), 2) if _overlap(*pair)]


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_every_edge_leads_forward_from_box_to_box(of: Diagram) -> None:
    drawing, lines = _drawing(of), outlined(of).lines
    axis = 1 if drawing.downwards else 0
    size = (WIDTH, HEIGHT)[axis]
    for place, line in enumerate(lines):
        way = [point[axis] for point in drawing.lines[place]]
        assert way == sorted(way, reverse=line.broken)
        low, high = (drawing.boxes[box][axis] for box in sorted((line.source, line.target)))
        assert sorted((way[0], way[-1])) == pytest.approx([low + size, high])


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_without_sub_workflows_no_edge_crosses_a_box_on_its_straight_parts(of: Diagram) -> None:
    of = replace(of, nodes=tuple(replace(known, group="") for known in of.nodes))
    drawing = _drawing(of)
    axis = 0 if drawing.downwards else 1
    for points, box in product(drawing.lines.values(), _boxes(drawing).values()):
        # From layer to layer, where a line is not straight, there is no box.
        for (x, y), (to_x, to_y) in pairwise(points):
            if (x, y)[axis] == (to_x, to_y)[axis]:
                run = Rectangle(min(x, to_x), min(y, to_y), abs(x - to_x), abs(y - to_y))
                assert not _overlap(run, box)


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_a_frame_contains_exactly_its_own_boxes(of: Diagram) -> None:
    drawing, outline = _drawing(of), outlined(of)
    frames = _frames(drawing)
    for (path, frame), (at, spot) in product(frames.items(), _boxes(drawing).items()):
        inside = outline.boxes[at].group[: len(path)] == path
        assert _holds(frame, spot) if inside else not _overlap(frame, spot)
    for (one, frame), (other, inner) in combinations(sorted(frames.items()), 2):
        if other[: len(one)] == one:
            assert _holds(frame, inner)
        else:
            assert not _overlap(frame, inner)


def test_a_sub_workflow_that_depends_on_itself_through_other_tasks_has_no_frame() -> None:
    nodes = [node("a", group="part"), node("b"), node("c", group="part"), node("d", group="own")]
    drawing = _drawing(diagram(nodes, "a>b b>c c>d"))
    assert list(drawing.frames) == [("own",)]


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_everything_lies_within_the_diagram(of: Diagram) -> None:
    drawing = _drawing(of)
    whole = Rectangle(-0.01, -0.01, drawing.width + 0.02, drawing.height + 0.02)
    assert all(_holds(whole, box) for box in _boxes(drawing).values())
    assert all(_holds(whole, frame) for frame in _frames(drawing).values())
    for points in drawing.lines.values():
        assert all(_holds(whole, Rectangle(x, y, 0, 0)) for x, y in points)


def test_two_hundred_boxes_in_nested_sub_workflows_do_not_overlap() -> None:
    boxes = _boxes(_drawing(large(200, 390, names=9, groups=7)))
    assert len(boxes) == 200
    assert not [pair for pair in combinations(boxes.values(), 2) if _overlap(*pair)]


def test_a_chain_is_a_straight_line() -> None:
    drawing = _drawing(diagram("a b c d", "a>b b>c c>d"))
    assert len({y for _, y in drawing.boxes.values()}) == 1


@pytest.mark.parametrize("wide", [3, 12])
def test_a_fan_out_is_centered(wide: int) -> None:
    pages = " ".join(f"p{at}" for at in range(wide))
    edges = " ".join(f"first>p{at} p{at}>last" for at in range(wide))
    of = diagram(f"first last {pages}", edges)
    middle = (_spot(of, "p0").y + _spot(of, f"p{wide - 1}").y) / 2
    for end in ("first", "last"):
        assert abs(_spot(of, end).y - middle) <= HEIGHT


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
    of = diagram("a b c x y z", "a>z b>y c>x")
    order = sorted("abc", key=lambda label: _spot(of, label).y)
    assert sorted("zyx", key=lambda label: _spot(of, label).y) == [
        "zyx"["abc".index(label)] for label in order
    ]


def test_boxes_are_reordered_to_avoid_a_crossing() -> None:
    of = diagram("a b c p q", "a>p a>q b>p c>q")
    order = sorted("abc", key=lambda label: _spot(of, label).y)
    assert order[1] == "a"
    assert (order[0] == "b") == (_spot(of, "p").y < _spot(of, "q").y)


def test_an_edge_out_of_a_sub_workflow_is_straight_from_its_box() -> None:
    inside = [node(known, group="g") for known in ("s", "p0", "p1", "p2", "p3", "p4")]
    edges = " ".join(f"s>p{at}" for at in range(5))
    of = diagram([*inside, node("z")], [edge(word) for word in f"{edges} p4>z".split()])
    assert _spot(of, "z").y == _spot(of, "p4").y


def test_tasks_without_dependencies_are_arranged_in_rows() -> None:
    drawing = _drawing(diagram(" ".join(f"p{at}" for at in range(30))))
    assert drawing.width < 1_300
    assert drawing.height < 1_300


def test_a_reversed_edge_is_drawn_backwards() -> None:
    of = diagram("a b c", "a>b b>c c>a")
    drawing = _drawing(of)
    backwards = [
        drawing.lines[place] for place, line in enumerate(outlined(of).lines) if line.broken
    ]
    assert len(backwards) == 1
    assert backwards[0][0][0] > backwards[0][-1][0]


def test_the_critical_path_is_marked_on_boxes_and_edges() -> None:
    nodes = [node("a"), node("b", seconds=5), node("c", seconds=9), node("d")]
    outline = outlined(diagram(nodes, [edge("a>b"), edge("a>c"), edge("c>d"), edge("b>d")]))
    assert [box.label for box in outline.boxes if box.critical] == ["a", "c", "d"]
    ends = [
        (outline.boxes[line.source].label, outline.boxes[line.target].label)
        for line in outline.lines
        if line.critical
    ]
    assert ends == [("a", "c"), ("c", "d")]
