"""Resolves the dependents of ended tasks, and gives them the results of their upstreams."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from django.db.models import Exists, OuterRef

from django_durable_tasks import conf, ports
from django_durable_tasks.choices import TERMINAL, Status
from django_durable_tasks.dependencies import edges, rules
from django_durable_tasks.encryption import decrypted
from django_durable_tasks.masking import masked
from django_durable_tasks.models import Task, TaskDependency
from django_durable_tasks.models.workflows import EndingEventQuerySet
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states import attempt_log, claims, dependencies
from django_durable_tasks.states.inserts import place
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store import tables
from django_durable_tasks.store.errors import Isolation, retry_on_deadlock
from django_durable_tasks.store.tables import FAST_PATH_MAX

# Resolves the dependents of ended tasks: they are released, skipped or failed, with a cause.
#
# One batch is one transaction. Ending events are locked with SKIP LOCKED, upstreams and dependents
# together in primary-key order. Each edge gets its outcome once, and what a dependent still needs
# is counted under its lock (READ COMMITTED, PostgreSQL documentation 13.2.1). An event that is
# processed twice, or by two processes at once, therefore changes nothing more. Skipping a
# dependent inserts an ending event, so a cascade advances one level per batch.


SMALL = 100
"""A worker resolves the ending of its task itself if that has at most this many dependents ..."""
FEW = 64
"""... and none of them waits for more upstreams than this; the leader resolves the others."""
_EDGES = 2_000


@dataclass(slots=True)
class ResolveResult:
    """The result of one batch.

    ``events``: how many ending events it processed. ``moved``: how many dependents changed their
    status. ``messages``: what the caller publishes after the commit. ``left``: whether the leader
    has to continue.
    """

    events: int = 0
    moved: int = 0
    messages: list[TaskMessage] = field(default_factory=list)
    left: bool = False

    def add(self, other: ResolveResult) -> None:
        """Add the result of another batch."""
        self.events, self.moved = self.events + other.events, self.moved + other.moved
        self.messages, self.left = self.messages + other.messages, self.left or other.left


_isolation = Isolation[uuid.UUID]("ending of task")


def resolve_endings(limit: int) -> ResolveResult:
    """Resolve the dependents of one batch of endings; call again until ``events`` is 0.

    The caller publishes ``messages``. A task whose dependents cannot be changed is postponed.
    The others are resolved.
    """
    unresolved = edges.endings().unresolved().exclude(task_id__in=_isolation.postponed())
    events: dict[uuid.UUID, list[int]] = {}
    for event, task_id in unresolved.values_list("pk", "task_id")[:limit]:
        events.setdefault(task_id, []).append(event)
    if not events:
        return ResolveResult()
    whole = ResolveResult()
    for done in _isolation.batch(
        lambda: _resolve_met([*chain(*events.values())], (), ()),
        lambda: list(events),
        lambda task_id: _resolve_met(events[task_id], (), ()),
    ):
        whole.add(done)
    return whole


def resolve_endings_of(task_id: uuid.UUID) -> ResolveResult:
    """Resolve the dependents of one ended task, unless the limits SMALL or FEW are exceeded."""
    waiting = dependencies.blocked_dependents(task_id, SMALL + 1)
    if waiting is None:  # this database has no statement for it
        unresolved = edges.endings().unresolved()
        event_ids = list(unresolved.filter(task_id=task_id).values_list("pk", flat=True))
        if not event_ids:
            return ResolveResult()
        below = edges.edges().below([task_id]).without_outcome().order_by()
        counts = below.values_list("task__unresolved_dependencies_count", flat=True)[: SMALL + 1]
        if len(counts) > SMALL or any(number > FEW for number in counts):
            return ResolveResult(left=True)
        return _resolve(unresolved.filter(pk__in=event_ids), len(event_ids))
    if not waiting or len(waiting) > SMALL or any(task.unresolved > FEW for task in waiting):
        return ResolveResult(left=bool(waiting))
    ready = [task for task in waiting if task.unresolved == 1 and task.is_due]
    queues, fast_path = set[str](), ports.fast_path
    # Before ``is_limited``, because ``is_open`` may reload the limits that ``is_limited`` reads.
    if conf.settings().FAST_PATH and len(ready) <= FAST_PATH_MAX and ports.broker_open():
        queues = {t.queue for t in ready if fast_path.is_open(t.name, t.queue, t.tenant_id)}
    limited = {t.name for t in waiting if fast_path.is_limited(t.name, t.queue, t.tenant_id)}
    return _resolve_met(waiting[0].ending_events, queues, limited)


def _resolve_met(
    events: Sequence[int], queues: Iterable[str], limited: Iterable[str]
) -> ResolveResult:
    """Resolve these events by one SQL statement if the database has one, the rest by the ORM.

    Released tasks of ``queues`` are published at once unless their names are in ``limited``.
    """
    done = retry_on_deadlock(dependencies.release_met)(
        events, _EDGES, list(queues), list(limited), conf.settings().REPUBLISH_AFTER
    )
    if done is None:
        return _resolve(edges.endings().unresolved().filter(pk__in=list(events)), len(events))
    result = ResolveResult(
        events=done.events,
        moved=done.moved,
        messages=claims.messages_for(done.queued),
        left=done.more,
    )
    if done.left and not done.more:
        by_orm = _resolve(
            edges.endings().unresolved().filter(pk__in=list(done.left)), len(done.left)
        )
        result.moved += by_orm.moved
        result.messages += by_orm.messages
    return result


def resolve_given_endings(events: Iterable[int]) -> ResolveResult:
    """Resolve these ending events, for an operation that follows its effects to the end.

    Only the ORM form is used, because the operation records which tasks the transitions change.
    """
    return _resolve(edges.endings().unresolved().filter(pk__in=list(events)), _EDGES)


@retry_on_deadlock
def _resolve(queryset: EndingEventQuerySet, limit: int) -> ResolveResult:
    event_ids = list(queryset.values_list("pk", flat=True)[:limit])
    if not event_ids:
        return ResolveResult()
    with tables.atomic():
        # Locked by the primary key alone: MariaDB would keep the lock of another index's entry for
        # an event that it skips.
        locked = (
            edges.endings()
            .filter(pk__in=event_ids)
            .order_by("pk")
            .select_for_update(skip_locked=True)
        )
        events = [event for event in locked if not event.resolved]
        # The ending of a task that has been replayed since is not resolved anymore.
        keys = {event.task_id for event in events}
        epochs = dict(tables.tasks().filter(pk__in=keys).values_list("pk", "epoch"))
        upstreams = {
            event.task_id
            for event in events
            if epochs.get(event.task_id, event.epoch) == event.epoch
        }
        waiting = edges.edges().below(upstreams).without_outcome().order_by("task", "pk")
        dependents = list(waiting.values_list("task", flat=True)[:_EDGES])
        rows = dependencies.lock_rows([*upstreams, *dependents])
        # Each upstream ended with the status of its row; a task that was deleted before its ending
        # was resolved, with that of its last event.
        outcomes: dict[uuid.UUID, str] = {}
        for event in sorted(events, key=lambda event: event.epoch):
            if event.task_id not in upstreams:
                continue
            row = rows.get(event.task_id)
            if row is None:
                outcomes[event.task_id] = event.status
            elif row.epoch == event.epoch and row.status in TERMINAL:
                outcomes[event.task_id] = row.status
        resolved: dict[uuid.UUID, list[tuple[TaskDependency, rules.EdgeOutcome]]] = {}
        writes: dict[int, tuple[str, rules.EdgeOutcome]] = {}
        for edge in edges.edges().below(outcomes).without_outcome().filter(task__in=dependents):
            dependent, outcome = rows.get(edge.task_id), outcomes[edge.upstream_id]
            default = dependent.on_upstream_failure if dependent else ""
            policy = edge.on_upstream_failure or default
            verdict = rules.edge_outcome(edge.dependency_type, outcome, policy)
            writes[edge.pk] = outcome, verdict
            edge.outcome = outcome
            resolved.setdefault(edge.task_id, []).append((edge, verdict))
        edges.write_outcomes(writes)
        done = reevaluate_joins(rows, set(dependents) & set(resolved), resolved)
        if len(dependents) < _EDGES:
            # Events that a workflow has to count are kept, the others are not needed anymore.
            counted = [
                event.pk for event in events if event.workflow_id is not None and event.delta
            ]
            edges.endings().filter(pk__in=counted).update(resolved=True)
            uncounted = {event.pk for event in events} - set(counted)
            edges.endings().filter(pk__in=sorted(uncounted)).delete()
        done.events = len(events)
    return done


Resolved = Mapping[uuid.UUID, Sequence[tuple[TaskDependency, rules.EdgeOutcome]]]
"""The edges that a batch resolved, for each dependent."""


def reevaluate_joins(
    rows: Mapping[uuid.UUID, Task], dependents: Iterable[uuid.UUID], resolved: Resolved
) -> ResolveResult:
    """Count what these locked tasks still need, and release, skip or fail those that are decided.

    ``resolved``: the edges of each dependent that this batch resolved; ``rows`` may also contain
    the upstreams that are the cause.
    """
    waiting = [rows[key] for key in sorted(dependents) if key in rows]
    waiting = [row for row in waiting if row.status == Status.BLOCKED]
    tallies = _tallies(waiting, resolved)
    by_decision: dict[rules.JoinDecision, list[Task]] = {kind: [] for kind in rules.JoinDecision}
    for row in waiting:
        unmet = _unmet(resolved.get(row.pk, ()))
        policy = unmet[0][1].policy if unmet else row.on_upstream_failure
        by_decision[rules.join_decision(row.join_count, tallies[row.pk], policy)].append(row)
    stay, skip = by_decision[rules.JoinDecision.STAY], by_decision[rules.JoinDecision.SKIP]
    fail = by_decision[rules.JoinDecision.FAIL]
    dependencies.set_needed({row.pk: rules.needed(row.join_count, tallies[row.pk]) for row in stay})
    messages = release(by_decision[rules.JoinDecision.RELEASE])
    reasons: dict[uuid.UUID, str] = {}
    causes: dict[uuid.UUID, uuid.UUID] = {}
    for row in [*skip, *fail]:
        unmet = _unmet(resolved.get(row.pk, ()))
        edge = unmet[0][0] if unmet else edges.first_unmet(row.pk)
        upstream = rows.get(edge.upstream_id) or tables.tasks().filter(pk=edge.upstream_id).first()
        name = str(edge.depends_on_id) if upstream is None else upstream.step or upstream.name
        reasons[row.pk] = f"upstream {name} ended {edge.outcome}"[:200]
        # The first cause, if the upstream ended because of another task.
        causes[row.pk] = upstream.cause if upstream and upstream.cause else edge.upstream_id
    dependencies.skip_blocked([(row.pk, row.epoch) for row in skip], reasons, causes)
    if fail:
        dependencies.fail_blocked([(row.pk, row.epoch) for row in fail], reasons, causes)
        whole = tables.tasks().filter(pk__in=[row.pk for row in fail]).order_by("pk")
        failed = partial(Outcome, kind=EndingKind.FAILED, error_type="UpstreamFailed")
        attempt_log.open_dead_letters(
            [(row, failed(error=reasons[row.pk]), "UPSTREAM") for row in whole]
        )
    return ResolveResult(moved=len(waiting) - len(stay), messages=messages)


def _unmet(
    resolved: Sequence[tuple[TaskDependency, rules.EdgeOutcome]],
) -> list[tuple[TaskDependency, rules.EdgeOutcome]]:
    return [(edge, outcome) for edge, outcome in resolved if outcome.resolved and not outcome.met]


def _tallies(waiting: Sequence[Task], resolved: Resolved) -> dict[uuid.UUID, rules.EdgeCounts]:
    """Count the edges of each task.

    For a task that needs all of its upstreams, only the unresolved edges are counted: a task with
    an edge that was unmet before this batch is not BLOCKED, so all unmet ones are in ``resolved``.
    """
    keys = {row.pk for row in waiting}
    brief = {row.pk for row in waiting if row.join_count is None and row.pk in resolved}
    counts = edges.tallies(sorted(keys - brief)) if keys - brief else {}
    unresolved = edges.open_tallies(sorted(brief))
    for key in brief:
        counts[key] = replace(
            unresolved.get(key, rules.EdgeCounts()), unmet=len(_unmet(resolved[key]))
        )
    return {key: counts.get(key, rules.EdgeCounts()) for key in keys}


def release(rows: Sequence[Task]) -> list[TaskMessage]:
    """Release locked BLOCKED tasks; return the messages of those that may be published at once."""
    settings = conf.settings()

    def may_publish_at_once(row: Any) -> bool:
        in_time = row.run_at <= row.read_at and row.expires_at is None and row.overlap_key is None
        return (
            in_time
            and not row.in_batch
            and ports.broker_open()
            and ports.fast_path.is_open(row.name, row.queue, row.tenant_id)
        )

    published = [row for row in rows if settings.FAST_PATH and may_publish_at_once(row)]
    epochs = {row.pk: row.epoch for row in published[:FAST_PATH_MAX]}
    dependencies.release([(row.pk, row.epoch) for row in rows if row.pk not in epochs])
    if not epochs:
        return []
    dependencies.release_and_publish(list(epochs.items()), settings.REPUBLISH_AFTER)
    return claims.messages_for(claims.claimed_tasks(tables.tasks().filter(pk__in=epochs)))


def find_deleted(past: int, limit: int) -> int:
    """Insert ending events of deleted upstreams, among ``limit`` unresolved edges after ``past``.

    Return the id of the last edge that was read, or 0 if there are none left. A task that is
    deleted with SQL inserts no event.
    """
    window = edges.edges().unresolved().filter(depends_on__isnull=False, pk__gt=past).order_by("pk")
    page = list(window.values_list("pk", flat=True)[:limit])
    if not page:
        return 0
    upstream = tables.tasks().filter(pk=OuterRef("depends_on"))
    orphaned = edges.edges().filter(pk__in=page).filter(~Exists(upstream), outcome__isnull=True)
    edges.insert_events_again(
        dict.fromkeys(set(orphaned.values_list("depends_on", flat=True)), (0, rules.DELETED))
    )
    return page[-1]


# Decrypts arguments, and replaces references in them by results, when a task function starts.


# Bytes, as JSON, of the results to which the arguments of one task refer. A worker reads all of
# them into its memory before it starts the task.
_REFERENCES_MAX_BYTES = 1_048_576


def resolve_references(
    args: list[Any], kwargs: dict[str, Any], tenant_id: int, *, hides_secrets: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with results instead of references, None for a task without success and
    for the task of another tenant.

    With ``hides_secrets`` the secrets of the results are masked as where they are displayed. Raises
    ResultTooLarge if the results together are larger than 1 MiB, and InvalidReference if a result
    does not have the referenced part.
    """
    references = rules.referred(args) | rules.referred(kwargs)
    ended = tables.tasks().for_tenant(tenant_id).filter(pk__in=references, status=Status.SUCCESS)
    results = {
        task_id: decrypted(result, place(tenant_id, "result", task_id))
        for task_id, result in ended.values_list("pk", "result")
    }
    rules.check_size(
        sum(len(json.dumps(result)) for result in results.values()), _REFERENCES_MAX_BYTES
    )
    if hides_secrets:
        # Before a part is taken: a part has lost the name that makes it secret.
        names = conf.settings().SECRET_NAMES
        results = {task_id: masked(result, names) for task_id, result in results.items()}
    return rules.resolved(args, results), rules.resolved(kwargs, results)
