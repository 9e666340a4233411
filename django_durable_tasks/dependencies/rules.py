"""The rules of dependencies: when an edge is met, when a join is met, what happens to a task whose
join cannot be met, and how arguments refer to the results of other tasks.

An edge is *resolved* once its upstream has ended. It is *met* if that ending is the one that
the edge requires. A task that waits is BLOCKED. Its ``unresolved_dependencies_count`` always
equals ``needed``.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from django_durable_tasks.choices import DependencyType, OnUpstreamFailure, Status
from django_durable_tasks.exceptions import InvalidOption, InvalidReference, ResultTooLarge
from django_durable_tasks.option_values import chosen

N = TypeVar("N", bound=Hashable)
DELETED = "DELETED"
"""The outcome of an edge whose upstream task was deleted."""
FORCED = "FORCED"
"""The outcome of an edge that an operator overrode, or that a released task does not need any more.
"""


class NewEdge(NamedTuple):
    """An edge or a gate that is about to be inserted. ``outcome``: the status of an upstream that
    has ended as the edge requires; the edge is then met.
    """

    task_id: uuid.UUID
    depends_on_id: uuid.UUID | None = None
    dependency_type: str = DependencyType.MUST_SUCCEED.value
    gate: str | None = None
    on_upstream_failure: str | None = None
    placed_by: str = ""
    comment: str = ""
    outcome: str | None = None

    @property
    def upstream_id(self) -> uuid.UUID:
        """The id of the upstream of an edge; raises LookupError for a gate."""
        if self.depends_on_id is None:
            raise LookupError(f"The gate {self.gate} of task {self.task_id} has no upstream.")
        return self.depends_on_id


class Join(StrEnum):
    """How many of its edges must be met before a task runs; a whole number is the third form."""

    ALL = "ALL"
    ANY = "ANY"


class JoinDecision(StrEnum):
    """The state of a waiting task that follows from its edges."""

    STAY = "STAY"
    RELEASE = "RELEASE"
    SKIP = "SKIP"
    FAIL = "FAIL"


def needed_of(join: object, edges: int) -> int | None:
    """Return how many edges a join needs, None for all of them. Raises InvalidOption if it needs
    more edges than the task has.
    """
    if join == Join.ALL:
        return None
    if join == Join.ANY:
        join = 1
    if isinstance(join, bool) or not isinstance(join, int) or join < 1:
        raise InvalidOption.of("join", join, "give 'ALL', 'ANY' or a whole number of 1 or more.")
    if join > edges:
        raise InvalidOption(
            f"join={join}: the task has {edges} upstream{'' if edges == 1 else 's'}, it would never"
            " run.",
            option="join",
        )
    return None if join == edges else join


def met(kind: str, outcome: str) -> bool:
    """Return whether this status of the upstream is what the edge requires; DELETED satisfies
    MUST_FINISH only.
    """
    if kind == DependencyType.MUST_FINISH:
        return True
    return outcome == (Status.SUCCESS if kind == DependencyType.MUST_SUCCEED else Status.FAILED)


@dataclass(frozen=True, slots=True)
class EdgeOutcome:
    """The state of an edge: resolved or waiting, met or not."""

    resolved: bool
    met: bool
    policy: str


def edge_outcome(kind: str, outcome: str, policy: str) -> EdgeOutcome:
    """Return the state of an edge for this status of its upstream, under the edge's policy."""
    if met(kind, outcome) or policy == OnUpstreamFailure.RUN:
        return EdgeOutcome(resolved=True, met=True, policy=policy)
    return EdgeOutcome(resolved=policy != OnUpstreamFailure.WAIT, met=False, policy=policy)


@dataclass(frozen=True, slots=True)
class EdgeCounts:
    """The number of unresolved, met and unmet edges of one task, and of its closed gates."""

    unresolved: int = 0
    met: int = 0
    unmet: int = 0
    gates: int = 0


def needed(join: int | None, tally: EdgeCounts) -> int:
    """Return how many dependencies the task still needs, its ``unresolved_dependencies_count``."""
    edges = tally.unresolved if join is None else max(0, join - tally.met)
    return edges + tally.gates


def join_decision(join: int | None, tally: EdgeCounts, policy: str) -> JoinDecision:
    """Return what happens to a BLOCKED task; ``policy`` is that of the edge that was not met."""
    lost = tally.unmet > 0 if join is None else tally.met + tally.unresolved < join
    if lost:
        return JoinDecision.FAIL if policy == OnUpstreamFailure.FAIL else JoinDecision.SKIP
    return JoinDecision.RELEASE if needed(join, tally) == 0 else JoinDecision.STAY


# Cycles


def cycle_in(upstreams: Mapping[N, Iterable[N]]) -> list[N]:
    """Return a cycle as a path whose first and last node are the same, or an empty list.

    ``upstreams`` returns the upstreams of a node. Takes linear time in nodes and edges, without
    recursion.
    """
    done: set[N] = set()
    for root in upstreams:
        if root in done:
            continue
        path: list[N] = [root]
        on_path, iterators = {root}, [iter(upstreams.get(root, ()))]
        while iterators:
            above = next(iterators[-1], None)
            if above is None:
                iterators.pop()
                on_path.discard(path[-1])
                done.add(path.pop())
            elif above in on_path:
                return [*path[path.index(above) :], above][::-1]
            elif above not in done:
                path.append(above)
                on_path.add(above)
                iterators.append(iter(upstreams.get(above, ())))
    return []


def layers(upstreams: Mapping[N, Sequence[N]]) -> list[list[N]]:
    """Return the nodes of an acyclic dependency graph in layers, each after all of its
    upstreams.
    """
    waits = {
        node: sum(1 for above in set(aboves) if above in upstreams)
        for node, aboves in upstreams.items()
    }
    below: dict[N, list[N]] = {}
    for node, aboves in upstreams.items():
        for above in dict.fromkeys(aboves):
            below.setdefault(above, []).append(node)
    layer = [node for node, number in waits.items() if not number]
    ordered = []
    while layer:
        ordered.append(layer)
        following = []
        for node in layer:
            for under in below.get(node, ()):
                waits[under] -= 1
                if not waits[under]:
                    following.append(under)
        layer = following
    return ordered


# Edges as callers give them: upstreams are tasks, ids, results or steps.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEdge:
    """One edge of a plan: the upstream's position in the plan, or the id of an existing task."""

    upstream: int | uuid.UUID
    kind: str = DependencyType.MUST_SUCCEED.value
    policy: str | None = None


def upstream_id(upstream: Any) -> uuid.UUID:
    """Return the id of an existing task: of a Task object, a result, a UUID or its text; raises
    InvalidOption.
    """
    task_id = getattr(upstream, "pk", None) or getattr(upstream, "id", None) or upstream
    try:
        return task_id if isinstance(task_id, uuid.UUID) else uuid.UUID(str(task_id))
    except ValueError:
        raise InvalidOption(
            f"{upstream!r} is no task to wait for: give a Task, its id, or a step."
        ) from None


def flat(upstreams: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    for upstream in upstreams:
        if isinstance(upstream, Mapping):
            yield from upstream.items()
        elif isinstance(upstream, list | tuple | set | frozenset):
            yield from flat(upstream)
        elif upstream is not None:
            yield upstream, DependencyType.MUST_SUCCEED.value


def wish(option: str, kind: Any) -> tuple[str, str | None]:
    """Return the type and the policy of an edge: from a type, or a pair; raises InvalidOption."""
    if isinstance(kind, tuple) and len(kind) != 2:
        raise InvalidOption.of(
            option, kind, "give a type, or a pair of type and on_upstream_failure."
        )
    wish, policy = kind if isinstance(kind, tuple) else (kind, None)
    choice = None if policy is None else chosen("on_upstream_failure", policy, OnUpstreamFailure)
    return chosen(option, wish, DependencyType), choice


def edges_to(upstreams: Any, policy: str | None = None) -> dict[uuid.UUID, PlannedEdge]:
    """Return the edges of ``depends_on=``, by upstream; raises InvalidOption."""
    edges: dict[uuid.UUID, PlannedEdge] = {}
    for upstream, kind in flat([upstreams]):
        checked_kind, own_policy = wish("depends_on", kind)
        edge = PlannedEdge(
            upstream=upstream_id(upstream), kind=checked_kind, policy=own_policy or policy
        )
        if edges.setdefault(upstream_id(upstream), edge) != edge:
            raise InvalidOption(
                f"depends_on names task {edge.upstream} twice, with different types."
            )
    return edges


# References in arguments to the results of other tasks: made, stored, and replaced by the results.


REFERS = "refers"
"""The key in a task's options that marks arguments with references."""
MASKED = "masked"
"""The value of REFERS if secrets are masked in the results that the task receives."""
MARK = "$result"
"""The key of a reference to another task's result in the stored arguments."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of a task of the plan, or a part of it; resolved when the referring task
    starts.
    """

    place: int
    builder: object = field(repr=False, compare=False)
    path: tuple[str | int, ...] = ()

    def __getitem__(self, key: str | int) -> Reference:
        """Return the reference to a part: a key of an object, or an index of a list."""
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise InvalidReference(
                f"result[{key!r}]: a part of a result is named by a string or a whole number."
            )
        return Reference(self.place, self.builder, (*self.path, key))

    def __iter__(self) -> Any:
        raise InvalidReference(
            "A result that is not available yet cannot be iterated over; pass it on unchanged."
        )


@dataclass(frozen=True, slots=True)
class TaskId(Reference):
    """The id that a task of the plan will have. It is replaced by a string when the plan is
    written.
    """

    def __getitem__(self, key: str | int) -> Reference:
        """Raise an error: an id has no parts."""
        raise InvalidReference(f"id[{key!r}]: the id of a task has no parts; pass it on unchanged.")


def references_in(value: Any) -> list[Reference]:
    """Return the references inside arguments."""
    if isinstance(value, Reference):
        return [value]
    if isinstance(value, Mapping):
        return [reference for item in value.values() for reference in references_in(item)]
    if isinstance(value, list | tuple):
        return [reference for item in value for reference in references_in(item)]
    return []


def written(value: Any, ids: Mapping[int, uuid.UUID]) -> Any:
    """Return arguments with their references in stored form; raises InvalidReference for a value
    that looks like a reference.
    """
    if isinstance(value, TaskId):
        return str(ids[value.place])
    if isinstance(value, Reference):
        return {MARK: str(ids[value.place]), "path": list(value.path)}
    if isinstance(value, Mapping):
        if MARK in value:
            raise InvalidReference(
                f"The key {MARK!r} in arguments is kept for references; name it otherwise."
            )
        return {key: written(item, ids) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [written(item, ids) for item in value]
    return value


def referred(value: Any) -> set[uuid.UUID]:
    """Return the tasks to whose results the stored arguments refer."""
    if isinstance(value, dict):
        if MARK in value:
            return {uuid.UUID(value[MARK])}
        return {task_id for item in value.values() for task_id in referred(item)}
    if isinstance(value, list):
        return {task_id for item in value for task_id in referred(item)}
    return set()


def resolved(value: Any, results: Mapping[uuid.UUID, Any]) -> Any:
    """Return arguments with results in place of references; None for a task without one.

    Raises InvalidReference for a part that the result does not have.
    """
    if isinstance(value, dict):
        if MARK not in value:
            return {key: resolved(item, results) for key, item in value.items()}
        result: Any = results.get(uuid.UUID(value[MARK]))
        path = value["path"]
        for key in path if result is not None else ():
            try:
                result = result[key]
            except (LookupError, TypeError):
                shown = "".join(f"[{step!r}]" for step in path)
                raise InvalidReference(
                    f"result{shown} of task {value[MARK]}: there is no {key!r} in what it returned."
                ) from None
        return result
    if isinstance(value, list):
        return [resolved(item, results) for item in value]
    return value


def check_size(size: int, most: int) -> None:
    """Raise ResultTooLarge if the results together are too large."""
    if size > most:
        raise ResultTooLarge(
            f"The results that the arguments refer to have {size:,} bytes, at most {most:,} are"
            " allowed: return a key to where the data are instead."
        )
