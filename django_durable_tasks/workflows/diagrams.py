"""Diagrams of workflow runs and of the surroundings of tasks: read as plain values, put into layers
with the critical path, and written as JSON and as text.

The optional app ``django_durable_tasks.contrib.diagrams`` adds drawings to ``FORMATS``.
"""

from __future__ import annotations

import json
import re
import unicodedata
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django_durable_tasks import conf
from django_durable_tasks.choices import DependencyType, Status
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.masking import masked_text
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.store import tables
from django_durable_tasks.texts import counted, did_you_mean
from django_durable_tasks.workflows.operations import in_parts

KINDS = tuple(str(kind) for kind in DependencyType)
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
        if self.status not in Status._value2member_map_:
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
    def duration(self) -> str:
        """Return the duration of the run as text; empty if it is unknown."""
        return "" if self.microseconds is None else lasted(self.microseconds)

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
        doubled = [key for key, times in Counter(n.id for n in self.nodes).items() if times > 1]
        if doubled:
            raise InvalidOption(
                f"nodes: the id {min(doubled)!r} is given more than once; give each node its own."
            )


def draw(diagram: Diagram, format: str) -> str:
    """Return the diagram in this format; raises InvalidOption with what to do instead.

    The result depends on the diagram only, not on the order of its nodes and edges or on the time.
    Foreign text is escaped for the format.
    """
    drawer = FORMATS.get(format)
    if drawer is None:
        hint = did_you_mean(str(format).lower(), FILE_FORMATS)
        hint = NOT_INSTALLED if format in FILE_FORMATS else hint
        hint = hint or f"Give one of {', '.join(FILE_FORMATS)}."
        raise InvalidOption.of("format", format, f"no such diagram. {hint}")
    return drawer(diagram)


# Layers. A node's layer is the number of edges on the longest path that leads to it, so every edge
# goes from a lower to a higher layer. A cycle is broken at the edge that closes it (depth first, in
# natural order). All steps start from one canonical order, so the order of the input does not
# matter.

Ends = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layered:
    """A diagram in canonical order; nodes and edges are identified by their positions.

    ``ends``: the positions of the nodes of each edge. ``broken``: the edges that close a cycle.
    ``outside``: the edges with an end that is not in the diagram. ``critical``: the nodes of the
    critical path, in order.
    """

    diagram: Diagram
    nodes: tuple[DiagramNode, ...]
    edges: tuple[DiagramEdge, ...]
    ends: tuple[Ends, ...]
    broken: frozenset[int]
    outside: tuple[DiagramEdge, ...]
    layer: tuple[int, ...]
    critical: tuple[int, ...]

    def kept(self) -> Iterator[Ends]:
        """Yield the ends of the edges that close no cycle."""
        return (ends for place, ends in enumerate(self.ends) if place not in self.broken)

    def layers(self) -> list[list[int]]:
        """Return the nodes of each layer."""
        rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for place, layer in enumerate(self.layer):
            rows[layer].append(place)
        return rows

    def critical_microseconds(self) -> int:
        """Return the total duration of the nodes of the critical path."""
        return sum(self.nodes[place].microseconds or 0 for place in self.critical)

    @property
    def title(self) -> str:
        """Return the title and the status of the whole diagram as safe text."""
        title, status = clean(self.diagram.title) or "Untitled", clean(self.diagram.status)
        return f"{title} · {status}" if status else title

    @property
    def summary(self) -> str:
        """Return the number of tasks per status in one line."""
        if not self.nodes:
            return "No tasks"
        layers = counted(max(self.layer) + 1, "layer")
        counts = Counter(node.status for node in self.nodes)
        return f"{counted(len(self.nodes), 'task')} in {layers}: {summed_up(counts)}"

    @property
    def critical_path(self) -> str:
        """Return the critical path in one line; empty if it is a single node."""
        path = [shortened(clean(self.nodes[place].label), _NAME) for place in self.critical]
        if len(path) < 2:
            return ""
        if len(path) > _LONG_PATH:
            half = _LONG_PATH // 2
            path = [*path[:half], f"… {len(path) - _LONG_PATH} more …", *path[-half:]]
        took = self.critical_microseconds()
        return " → ".join(path) + (f" ({lasted(took)})" if took else "")

    @property
    def remarks(self) -> list[str]:
        """Return what is missing in the drawing, or wrong with the graph, as sentences."""
        remarks = []
        if self.broken:
            closing = [self.ends[place] for place in sorted(self.broken)]
            names = [shortened(clean(node.label), _NAME) for node in self.nodes]
            shown = listed((f"{names[source]} → {names[target]}" for source, target in closing), 3)
            remarks.append(
                "This graph holds a cycle, which can never run; for the drawing it is broken at"
                f" {shown}."
            )
        if self.outside:
            lead = "dependency leads" if len(self.outside) == 1 else "dependencies lead"
            remarks.append(f"{len(self.outside):,} {lead} to tasks outside this diagram.")
        return remarks


def layered(diagram: Diagram) -> Layered:
    """Return the diagram in canonical order, without cycles and in layers; linear in nodes and
    edges.
    """
    nodes = tuple(sorted(diagram.nodes, key=lambda node: (natural(node.label), node.id)))
    places = {node.id: place for place, node in enumerate(nodes)}
    inside: list[DiagramEdge] = []
    outside: list[DiagramEdge] = []
    for edge in diagram.edges:
        (inside if edge.source in places and edge.target in places else outside).append(edge)
    inside.sort(key=lambda e: (places[e.source], places[e.target], e.kind, e.resolved, e.outcome))
    outside.sort(key=lambda e: (e.source, e.target, e.kind, e.resolved, e.outcome))
    ends = tuple((places[edge.source], places[edge.target]) for edge in inside)
    backwards = _closing(len(nodes), ends)
    broken = frozenset(place for place, pair in enumerate(ends) if pair in backwards)
    kept = [pair for pair in ends if pair not in backwards]
    order, layer = longest_paths(len(nodes), kept)
    critical = _critical(nodes, kept, order)
    return Layered(
        diagram, nodes, tuple(inside), ends, broken, tuple(outside), tuple(layer), critical
    )


def targets_of(count: int, ends: Iterable[Ends]) -> list[list[int]]:
    """Return the targets of each source, in the order of the edges."""
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in ends:
        targets[source].append(target)
    return targets


def longest_paths(count: int, ends: Iterable[Ends]) -> tuple[list[int], list[int]]:
    """Return the positions in topological order, and for each the number of edges of the longest
    path to it. The order lacks the positions on cycles and behind them.
    """
    targets = targets_of(count, ends)
    missing = Counter(target for reached in targets for target in reached)
    order = [place for place in range(count) if not missing[place]]
    layer = [0] * count
    for place in order:
        for target in targets[place]:
            layer[target] = max(layer[target], layer[place] + 1)
            missing[target] -= 1
            if not missing[target]:
                order.append(target)
    return order, layer


def _closing(count: int, ends: Sequence[Ends]) -> set[Ends]:
    """Return the back edges of a depth-first search; without them there is no cycle."""
    targets = targets_of(count, ends)
    waiting = {target for _, target in ends}
    roots = [place for place in range(count) if place not in waiting]
    back_edges: set[Ends] = set()
    entered, finished = bytearray(count), bytearray(count)
    for root in [*roots, *range(count)]:
        if entered[root]:
            continue
        entered[root] = 1
        path = [(root, iter(targets[root]))]
        while path:
            place, following = path[-1]
            target = next(following, None)
            if target is None:
                finished[place] = 1
                path.pop()
            elif not entered[target]:
                entered[target] = 1
                path.append((target, iter(targets[target])))
            elif not finished[target]:
                back_edges.add((place, target))
    return back_edges


def _critical(
    nodes: Sequence[DiagramNode], ends: Sequence[Ends], order: Sequence[int]
) -> tuple[int, ...]:
    """Return the path with the longest total duration (an unmeasured duration counts as 0).

    Among equal ones it is the one with the most nodes, then the first in natural order.
    """
    targets = targets_of(len(nodes), ends)
    best = [(-(node.microseconds or 0), -1) for node in nodes]
    following = [-1] * len(nodes)
    for place in reversed(order):
        after = min(targets[place], key=lambda target: (best[target], target), default=-1)
        if after >= 0:
            following[place] = after
            (duration, count), (duration_after, count_after) = best[place], best[after]
            best[place] = (duration + duration_after, count + count_after)
    place = min(range(len(nodes)), key=lambda start: (best[start], start), default=-1)
    path = []
    while place >= 0:
        path.append(place)
        place = following[place]
    return tuple(path)


# Text: foreign text is made safe and shortened, numbers and durations are formatted.

ELLIPSIS = "…"
SIGNS = {
    Status.BLOCKED: "◇",
    Status.PENDING: "○",
    Status.QUEUED: "»",
    Status.RUNNING: "►",
    Status.SUCCESS: "✓",
    Status.FAILED: "✗",
    Status.CANCELLED: "⊘",
    Status.SKIPPED: "↷",
    Status.EXPIRED: "⧖",
}
# Columns of a label in the critical path and in remarks, and labels of the path before it is cut.
_NAME = 36
_LONG_PATH = 8
# Characters of foreign text that are looked at; no format shows more.
_LONGEST = 4_000
# Control characters, lone surrogates, characters that XML does not allow, and direction marks.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_NUMBER = re.compile("([0-9]{1,15})")
_HARMLESS = re.compile(r"[^\s\\\x00-\x20\x7f-\x9f]+")
_SCHEME = re.compile(r"([^/?#:]*):")


def clean(text: str) -> str:
    """Return foreign text on one line, with disallowed characters replaced by U+FFFD."""
    return _UNSEEN.sub("\ufffd", " ".join(text[:_LONGEST].split()))


def safe_link(href: str) -> str:
    """Return the link if it is relative, http or https without unusual characters; otherwise an
    empty text.
    """
    link = href.strip()
    if not _HARMLESS.fullmatch(link) or _UNSEEN.search(link):
        return ""
    scheme = _SCHEME.match(link)
    return link if scheme is None or scheme[1].lower() in {"http", "https"} else ""


def natural(text: str) -> tuple[str | int, ...]:
    """Return a sort key under which ``page 9`` is before ``page 10``."""
    return tuple(int(part) if place % 2 else part for place, part in enumerate(_NUMBER.split(text)))


def columns(text: str) -> int:
    """Return how many columns of a terminal the text occupies."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Cf", "Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shortened(text: str, available: float, measure: Callable[[str], float] = columns) -> str:
    """Return the text without as much of its middle as does not fit: often only the end differs
    between siblings.
    """
    if measure(text) <= available:
        return text
    text = text if len(text) <= 400 else text[:200] + text[-200:]

    def cut(keep: int) -> str:
        head = (keep + 1) // 2
        return text[:head].rstrip() + ELLIPSIS + text[len(text) - (keep - head) :].lstrip()

    lengths = range(1, len(text))
    return cut(max(1, bisect_right(lengths, available, key=lambda keep: measure(cut(keep)))))


def lasted(microseconds: int) -> str:
    """Return a duration in at most two units."""
    seconds = microseconds / 1_000_000
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    sizes = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    for (size, unit), (smaller, smaller_unit) in pairwise(sizes):
        if whole >= size:
            number = whole % size // smaller
            return f"{whole // size:,} {unit}" + (f" {number} {smaller_unit}" if number else "")
    return f"{whole} s"


def summed_up(counts: Mapping[str, int]) -> str:
    """Return ``12 SUCCESS, 1 FAILED``, in the order of the statuses."""
    return ", ".join(f"{counts[status]:,} {status}" for status in Status if counts.get(status))


def listed(words: Iterable[str], most: int) -> str:
    """Return the words with commas; those after the first ``most`` are counted."""
    words = list(words)
    shown = words[:most] + ([f"{len(words) - most:,} more"] if len(words) > most else [])
    return " and ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


# Text for a terminal: the layers in order, below each task its upstreams.

WIDTH = 100
_LABEL = 76
_LEAST_LABEL = 24
_MOST_NAMED = 6


def as_text(diagram: Diagram) -> str:
    """Return lines of at most 100 columns, each task in its layer with its sign, status and
    duration.

    ``*`` marks the critical path. Unresolved upstreams are listed first, after ``waits for``;
    resolved ones after ``after``.
    """
    lines = _text_lines(layered(diagram))
    return "\n".join(shortened(line, WIDTH).rstrip() for line in lines) + "\n"


def _text_lines(graph: Layered) -> Iterator[str]:
    yield graph.title
    yield graph.summary
    if graph.critical_path:
        yield f"* Critical path: {graph.critical_path}"
    yield from (f"! {remark}" for remark in graph.remarks)
    upstream: dict[str, tuple[list[str], list[str]]] = {node.id: ([], []) for node in graph.nodes}
    for place, edge in enumerate(graph.edges):
        source = graph.nodes[graph.ends[place][0]]
        words = f"{SIGNS[Status(source.status)]} {shortened(clean(source.label), 30)}"
        words += "" if edge.kind == DependencyType.MUST_SUCCEED else f" ({edge.kind})"
        words += " (closes a cycle)" if place in graph.broken else ""
        upstream[edge.target][edge.resolved].append(words)
    for edge in graph.outside:
        if edge.target in upstream:
            upstream[edge.target][0].append(f"{clean(edge.source)} (outside this diagram)")
    critical = set(graph.critical) if len(graph.critical) > 1 else set()
    for layer, places in enumerate(graph.layers()):
        yield ""
        title = f"┌─ layer {layer + 1} · {counted(len(places), 'task')} "
        yield title + "─" * (WIDTH - columns(title))
        group = ""
        for place in sorted(places, key=lambda place: (graph.nodes[place].path, place)):
            node = graph.nodes[place]
            if node.group != group:
                group = node.group
                yield f"│ {clean(group)}/" if group else "│"
            inset = "│   " if group else "│ "
            head = f"{inset}{SIGNS[Status(node.status)]}{'*' if place in critical else ' '} "
            end = f"{node.status:<9}  {node.duration}"
            space = max(_LEAST_LABEL, min(_LABEL, WIDTH - columns(end) - 1) - columns(head))
            label = shortened(clean(node.label) or "(no label)", space)
            yield f"{head}{label}{' ' * (space - columns(label))} {end}"
            unresolved, resolved = upstream[node.id]
            if unresolved:
                corner = "├" if resolved else "└"
                yield f"{inset}    {corner} waits for {listed(unresolved, _MOST_NAMED)}"
            if resolved:
                yield f"{inset}    └ after {listed(resolved, _MOST_NAMED)}"
            if node.reason:
                yield f"{inset}    because: {clean(node.reason)}"


# JSON: every node and every edge, with the values from which the drawings are made. ``schema`` is
# incremented when a key is renamed or removed; keys may be added.

SCHEMA = 1
# As in Django's json_script: safe inside <script> too.
_IN_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def as_json(diagram: Diagram) -> str:
    """Return everything as one JSON object: times in ISO 8601, durations in seconds, layers from 0.

    ``critical_path.measured`` is true if it is based on durations, not on the number of nodes.
    ``broken`` edges close a cycle and are ignored for the layers; ``outside`` edges lead to tasks
    that are not among the nodes.
    """
    graph = layered(diagram)
    critical, critical_edges = set(graph.critical), set(pairwise(graph.critical))
    seconds = graph.critical_microseconds() / 1_000_000
    counts = Counter(node.status for node in graph.nodes)
    layers = graph.layers()
    document = {
        "schema": SCHEMA,
        "title": diagram.title,
        "status": diagram.status,
        "counts": {str(status): counts[status] for status in Status if counts[status]},
        "critical_path": {
            "nodes": [graph.nodes[place].id for place in graph.critical],
            "seconds": seconds,
            "measured": seconds > 0,
        },
        "layers": [[graph.nodes[place].id for place in row] for row in layers],
        "nodes": [
            _node(graph.nodes[place]) | {"layer": layer, "critical": place in critical}
            for layer, row in enumerate(layers)
            for place in row
        ],
        "edges": [
            asdict(edge)
            | {
                "critical": graph.ends[place] in critical_edges,
                "broken": place in graph.broken,
                "outside": False,
            }
            for place, edge in enumerate(graph.edges)
        ]
        + [
            asdict(edge) | {"critical": False, "broken": False, "outside": True}
            for edge in graph.outside
        ],
    }
    return json.dumps(document, indent=1).translate(_IN_HTML)


def _node(node: DiagramNode) -> dict[str, object]:
    return {
        "id": node.id,
        "label": node.label,
        "name": node.name,
        "status": str(node.status),
        "started_at": node.started_at and node.started_at.isoformat(),
        "completed_at": node.completed_at and node.completed_at.isoformat(),
        "seconds": None if node.microseconds is None else node.microseconds / 1_000_000,
        "reason": node.reason,
        "group": node.group,
        "href": safe_link(node.href),
    }


FORMATS: dict[str, Callable[[Diagram], str]] = {"text": as_text, "json": as_json}
"""The functions that write a diagram. The optional app adds ``mermaid``, ``svg``, and ``html`` for
the pages of the admin.
"""
FILE_FORMATS = ("text", "mermaid", "svg", "json")
NOT_INSTALLED = "Add 'django_durable_tasks.contrib.diagrams' to INSTALLED_APPS."


# Reads a workflow run, or a task and its surroundings, as a Diagram of plain nodes and edges.
#
# Called by the admin and the command line.

# Tasks of a drawing: more cannot be read.
NEAR = 1_000
# Dependencies between the task and the most distant one that is drawn. Each level costs two
# statements, and a caller of the API decides how long its chains are.
FAR = 100
# Dependencies of a drawing around a task, as many as a workflow of the API may have. Each of 1,000
# tasks may have 100 upstreams, and 10,000 dependencies are about 2 MB of JSON.
EDGES_NEAR = 10_000
_ROW = ("pk", "step", "name", "status", "started_at", "completed_at", "reason", "workflow")
_EDGE = ("depends_on", "task", "dependency_type", "resolved_at", "outcome")


def of_run(run: WorkflowRun) -> Diagram:
    """Return the diagram of a run; each run inside it is a group."""
    groups = _groups(run)
    keys = list(tables.tasks().filter(workflow__in=list(groups)).values_list("pk", flat=True))
    return _diagram(f"{run.name} {run.pk}", run.status, keys, groups)


def around(task: Task, most: int = NEAR) -> Diagram:
    """Return the diagram of a task and its upstreams and downstreams, the nearest first.

    It has at most ``most`` tasks, at most FAR dependencies away, and EDGES_NEAR edges. The diagram
    counts edges to other tasks but does not draw them.
    """
    keys, frontier = [task.pk], {task.pk}
    seen = {task.pk}
    for _level in range(FAR):
        if not frontier or len(keys) >= most:
            break
        near = set[uuid.UUID]()
        for task_ids in in_parts(sorted(frontier)):
            below = edges.edges().below(task_ids).order_by()
            near.update(below.values_list("task", flat=True).distinct())
            above = edges.edges().above(task_ids).filter(depends_on__isnull=False).order_by()
            near.update(above.values_list("depends_on", flat=True).distinct())
        frontier = near - seen
        seen |= frontier
        keys += sorted(frontier)
    root = None if task.workflow is None else workflow_runs().filter(pk=task.workflow.root).first()
    name = task.step or task.name
    groups = {} if root is None else _groups(root)
    return _diagram(f"{name} {task.pk}", task.status, keys[:most], groups, EDGES_NEAR)


def _groups(run: WorkflowRun) -> dict[uuid.UUID, str]:
    """Return the path of names of each run inside this one; equal paths get a number."""
    rows = list(
        workflow_runs().filter(root=run.root).order_by("pk").values_list("pk", "parent", "name")
    )
    paths, taken, growing = {run.pk: ""}, set(), True
    while growing:
        growing = False
        for key, parent, name in rows:
            if key in paths or parent not in paths:
                continue
            path = plain = f"{paths[parent]}/{name.replace('/', '-')}".lstrip("/")
            number = 1
            while path in taken:
                number += 1
                path = f"{plain}-{number}"
            taken.add(path)
            paths[key], growing = path, True
    return paths


def _diagram(
    title: str,
    status: str,
    keys: Iterable[uuid.UUID],
    groups: Mapping[uuid.UUID, str],
    most_edges: int | None = None,
) -> Diagram:
    secret = conf.settings().SECRET_NAMES
    nodes: list[DiagramNode] = []
    drawn_edges: list[DiagramEdge] = []
    for ids in in_parts(keys):
        # The approvals and holds that these tasks wait for, as text.
        gates: dict[uuid.UUID, str] = {}
        for key, gate, comment in (
            edges.edges().above(ids).gates().unresolved().values_list("task", "gate", "comment")
        ):
            text = f"{gate}: {comment}" if comment else str(gate)
            gates[key] = f"{gates[key]}, {text}" if key in gates else f"waits for {text}"
        for key, step, name, task_status, started, completed, reason, run in (
            tables.tasks().filter(pk__in=ids).values_list(*_ROW)
        ):
            nodes.append(
                DiagramNode(
                    id=str(key),
                    label=step or name.rpartition(".")[2],
                    status=task_status,
                    name=name,
                    started_at=started,
                    completed_at=completed,
                    reason=masked_text(gates.get(key, "") or reason, secret),
                    group=groups.get(run, ""),
                )
            )
        above = edges.edges().above(ids).filter(depends_on__isnull=False).values_list(*_EDGE)
        further = None if most_edges is None else most_edges - len(drawn_edges)
        for source, target, kind, resolved_at, outcome in above[:further]:
            drawn_edges.append(
                DiagramEdge(
                    source=str(source),
                    target=str(target),
                    kind=kind,
                    resolved=resolved_at is not None,
                    outcome=outcome or "",
                )
            )
    return Diagram(title=title, status=status, nodes=tuple(nodes), edges=tuple(drawn_edges))
