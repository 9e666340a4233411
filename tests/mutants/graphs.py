"""Guards of dependencies that can be removed: the order of locks, the lock itself, the flag of an
edge, the recount.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tests.mutants.statements import with_text

_LOCK = "   ORDER BY id\n     FOR NO KEY UPDATE),"
_FLAG = " AND num_nonnulls(edge.resolved_at, edge.outcome) < 1"
_SEEN = " AND num_nonnulls(resolved_at, outcome) < 1"
_FLIPS = "wants - count(*)::integer AS wants"


def _with_locks(of: Callable[[Sequence[uuid.UUID]], Any]) -> None:
    from django_durable_tasks.states import dependencies as transition_dependencies

    setattr(transition_dependencies, "lock_rows", lambda ids, **_: {row.pk: row for row in of(ids)})  # noqa: B010 - a function to mypy


def with_locks_in_any_order() -> None:
    """Lock rows one by one in arbitrary order."""
    from django_durable_tasks.models import Task

    def in_any_order(ids: Sequence[uuid.UUID]) -> Any:
        for key in random.sample(sorted(ids), len(ids)):
            yield from Task.objects.filter(pk=key).select_for_update()

    _with_locks(in_any_order)
    with_text("resolve_endings", (_LOCK, "   ORDER BY random()\n     FOR NO KEY UPDATE),"))


def without_the_lock_of_rows() -> None:
    """Decide from rows that other processes may be changing."""
    from django_durable_tasks.models import Task

    _with_locks(lambda ids: Task.objects.filter(pk__in=ids))
    with_text("resolve_endings", (_LOCK, "   ORDER BY id),"))


def without_the_flag_of_edges() -> None:
    """Resolve an edge again that is resolved."""
    with_text("resolve_endings", (_FLAG, ""), (_SEEN, ""))


def with_a_blind_counter() -> None:
    """Subtract one for each resolution, whatever the edges say."""
    from django_durable_tasks.dependencies import edges
    from django_durable_tasks.dependencies.rules import EdgeCounts
    from django_durable_tasks.models import Task

    def one_less(children: Sequence[uuid.UUID]) -> dict[uuid.UUID, EdgeCounts]:
        counts = Task.objects.filter(pk__in=children).values_list(
            "pk", "unresolved_dependencies_count"
        )
        return {key: EdgeCounts(unresolved=number - 1) for key, number in counts}

    setattr(edges, "open_tallies", one_less)  # noqa: B010 - mypy knows it as a function
    with_text("resolve_endings", (_FLIPS, "wants - 1 AS wants"))


def with_locks_of_running_rows_in_callers_transactions() -> None:
    """Treat every transaction as one of the engine's own, which is short."""
    from django_durable_tasks.states import dependencies as transition_dependencies
    from django_durable_tasks.states import endings, guarded_update, inserts

    for module in (inserts, endings, transition_dependencies, guarded_update):
        setattr(module, "callers_transaction", lambda: False)  # noqa: B010 - a function to mypy


def without_the_marks_of_upstreams_that_run() -> None:
    """Insert an edge without a lock on its upstream, and do not read the upstream again."""
    from django_durable_tasks.states import endings

    setattr(endings, "leave_marks", lambda ids: None)  # noqa: B010 - a function to mypy
