"""The content of a diagram: tasks as nodes, dependencies as edges, as plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.rules.states import Status

KINDS = ("MUST_SUCCEED", "MUST_FINISH", "MUST_FAIL")
_STATUSES = frozenset(str(status) for status in Status)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagramNode:
    """One task.

    ``name`` is the registered task name, ``group`` the path of its sub-workflow (``""`` the outer
    one, ``"a/b"`` nested), ``href`` a link, which is drawn only if it is relative, http or https.
    Raises InvalidOption for an unknown status.
    """

    id: str
    label: str
    status: str
    name: str = ""
    started_at: datetime | None = None
    completed_at: datetime | None = None
    reason: str = ""
    group: str = ""
    href: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown status."""
        if self.status not in _STATUSES:
            raise InvalidOption(
                f"status={self.status!r} of node {self.id!r}: give one of {', '.join(Status)}."
            )

    @property
    def microseconds(self) -> int | None:
        """Return the duration of the run; None if it is unknown, 0 if the clocks contradict each
        other.
        """
        start, end = self.started_at, self.completed_at
        if start is None or end is None or (start.utcoffset() is None) != (end.utcoffset() is None):
            return None
        return max(0, (end - start) // _MICROSECOND)

    @property
    def path(self) -> tuple[str, ...]:
        """Return the names of the sub-workflows around the node, the outermost first."""
        return tuple(part for part in self.group.split("/") if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagramEdge:
    """One dependency: the target waits for the source.

    ``resolved``: the target no longer waits for it; ``outcome``: why. Raises InvalidOption for an
    unknown kind.
    """

    source: str
    target: str
    kind: str
    resolved: bool = False
    outcome: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown kind."""
        if self.kind not in KINDS:
            ends = f"{self.source!r} -> {self.target!r}"
            raise InvalidOption(
                f"kind={self.kind!r} of edge {ends}: give one of {', '.join(KINDS)}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagram:
    """The content of a diagram; the order of nodes and edges does not matter.

    An edge may refer to a task that is not among the nodes: it is mentioned, not drawn. Raises
    InvalidOption if two nodes have the same id.
    """

    title: str
    status: str
    nodes: tuple[DiagramNode, ...]
    edges: tuple[DiagramEdge, ...]

    def __post_init__(self) -> None:
        """Refuse two nodes with the same id."""
        doubled = [
            known for known, times in Counter(node.id for node in self.nodes).items() if times > 1
        ]
        if doubled:
            raise InvalidOption(
                f"nodes: the id {min(doubled)!r} is given more than once; give each node its own."
            )
