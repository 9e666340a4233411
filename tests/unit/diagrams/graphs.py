"""Graphs for the diagram tests: small ones from short notation, random ones, large ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from django_durable_tasks.choices import Status
from django_durable_tasks.workflows.diagrams import KINDS, Diagram, DiagramEdge, DiagramNode

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
STATUSES = tuple(str(status) for status in Status)


def node(
    id: str, status: str = "SUCCESS", seconds: float | None = None, **fields: str
) -> DiagramNode:
    """Return a node, by default with its id as label. With `seconds` it has a measured run."""
    ended = None if seconds is None else START + timedelta(seconds=seconds)
    started = None if seconds is None else START
    return DiagramNode(
        id=id, status=status, started_at=started, completed_at=ended, **{"label": id} | fields
    )


def edge(arrow: str, kind: str = "MUST_SUCCEED", *, resolved: bool = True) -> DiagramEdge:
    """Return the edge written as ``a>b``."""
    source, _, target = arrow.partition(">")
    return DiagramEdge(source=source, target=target, kind=kind, resolved=resolved)


def diagram(
    nodes: Sequence[DiagramNode] | str,
    edges: Sequence[DiagramEdge] | str = "",
    title: str = "nightly",
) -> Diagram:
    """Return a diagram. Strings stand for nodes that succeeded and for edges ``a>b``."""
    nodes = [node(word) for word in nodes.split()] if isinstance(nodes, str) else nodes
    edges = [edge(word) for word in edges.split()] if isinstance(edges, str) else edges
    return Diagram(title=title, status="RUNNING", nodes=tuple(nodes), edges=tuple(edges))


def large(count: int, edges: int, names: int, groups: int = 0, seed: int = 1) -> Diagram:
    """Return a random acyclic graph with this number of nodes, edges, different names and
    sub-workflows.
    """
    chance = random.Random(seed)
    nodes = [
        node(
            f"n{number}",
            chance.choice(STATUSES),
            name=f"jobs.kind{number % names}",
            group=f"all/part {number % groups}" if groups else "",
        )
        for number in range(count)
    ]
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < edges:
        low, high = sorted(chance.sample(range(count), 2))
        pairs.add((low, high))
    return diagram(
        nodes, [edge(f"n{low}>n{high}", chance.choice(KINDS)) for low, high in sorted(pairs)]
    )


def parallel_chains(count: int, length: int) -> Diagram:
    """Return this number of chains of the same kinds of tasks between one start and one end."""
    nodes = [node("start", name="jobs.start"), node("end", name="jobs.end")]
    edges = []
    for chain in range(count):
        ids = [f"step {step} of {chain}" for step in range(length)]
        nodes += [node(known, name=f"jobs.step{step}") for step, known in enumerate(ids)]
        edges += [
            edge(f"{low}>{high}") for low, high in zip(["start", *ids], [*ids, "end"], strict=True)
        ]
    return diagram(nodes, edges)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""

    def luminance(colour: str) -> float:
        channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in channels
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


GROUPS = ("", "", "", "a", "a/b", "a/c", "d", "d/e/f", "a/b/c/d/e/f/g/h")


@st.composite
def diagrams(draw: st.DrawFn, *, cycles: bool = False, most: int = 24) -> Diagram:
    """Draw random graphs, some with sub-workflows. With ``cycles`` any directed graph, including
    self-edges and duplicates.
    """
    count = draw(st.integers(0, most))
    nodes = [
        node(
            f"n{number}",
            draw(st.sampled_from(STATUSES)),
            draw(st.none() | st.integers(0, 9_000)),
            label=draw(st.sampled_from(["page 9", "page 10", "extract", f"n{number}"])),
            name=draw(st.sampled_from(["", "jobs.a", "jobs.b"])),
            group=draw(st.sampled_from(GROUPS)),
        )
        for number in range(count)
    ]
    number = st.integers(0, max(0, count - 1))
    found = draw(
        st.lists(
            st.tuples(number, number, st.sampled_from(KINDS), st.booleans()), max_size=3 * count
        )
    )
    edges = [
        edge(
            f"n{one}>n{other}" if cycles or one < other else f"n{other}>n{one}",
            kind,
            resolved=resolved,
        )
        for one, other, kind, resolved in found
        if count and (cycles or one != other)
    ]
    return diagram(nodes, edges)
