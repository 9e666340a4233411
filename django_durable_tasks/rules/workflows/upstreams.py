"""Parses upstreams as callers give them: tasks, ids, results or steps, and types of edges."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from django_durable_tasks.exceptions import (
    InvalidOption,
)
from django_durable_tasks.rules.dependencies import (
    DependencyType,
    OnUpstreamFailure,
    chosen,
)
from django_durable_tasks.rules.workflows.plan import (
    PlannedEdge,
)


def upstream_id(given: Any) -> uuid.UUID:
    """Return the id of an existing task: of a Task object, a result, a UUID or its text; raises
    InvalidOption.
    """
    found = getattr(given, "pk", None) or getattr(given, "id", None) or given
    try:
        return found if isinstance(found, uuid.UUID) else uuid.UUID(str(found))
    except ValueError:
        raise InvalidOption(
            f"{given!r} is no task to wait for: give a Task, its id, or a step."
        ) from None


def flat(upstreams: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    for given in upstreams:
        if isinstance(given, Mapping):
            yield from given.items()
        elif isinstance(given, list | tuple | set | frozenset):
            yield from flat(given)
        elif given is not None:
            yield given, DependencyType.MUST_SUCCEED.value


def wish(option: str, kind: Any) -> tuple[str, str | None]:
    """Return the type and the policy of an edge: from a type, or a pair; raises InvalidOption."""
    if isinstance(kind, tuple) and len(kind) != 2:
        raise InvalidOption(
            f"{option}={kind!r}: give a type, or a pair of type and on_upstream_failure."
        )
    wish, policy = kind if isinstance(kind, tuple) else (kind, None)
    choice = None if policy is None else chosen("on_upstream_failure", policy, OnUpstreamFailure)
    return chosen(option, wish, DependencyType), choice


def edges_to(upstreams: Any, policy: str | None = None) -> dict[uuid.UUID, PlannedEdge]:
    """Return the edges of ``depends_on=``, by upstream; raises InvalidOption."""
    found: dict[uuid.UUID, PlannedEdge] = {}
    for given, kind in flat([upstreams]):
        found_kind, own = wish("depends_on", kind)
        edge = PlannedEdge(upstream=upstream_id(given), kind=found_kind, policy=own or policy)
        if found.setdefault(upstream_id(given), edge) != edge:
            raise InvalidOption(
                f"depends_on names task {edge.upstream} twice, with different types."
            )
    return found
