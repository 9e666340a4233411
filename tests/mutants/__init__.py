"""Guards of the package that can be removed, one at a time, in processes of the test project.

DURABLE_MUTANT names the guard. Only the test project reads it, when its applications are ready.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tests.mutants import batches, counts, crashes, graphs
from tests.mutants.statements import with_text

VARIABLE = "DURABLE_MUTANT"
_GUARD = "AND task.status = 'RUNNING' AND task.epoch = %(epoch)s AND task.run_id = %(run_id)s"


def apply() -> None:
    """Remove the guard that the environment names. Raises KeyError for an unknown name."""
    name = os.environ.get(VARIABLE)
    if name:
        MUTANTS[name]()


def _with_the_row_s_own(*tokens: str) -> None:
    """Let an ending use the expected values of the row instead of those of the run."""
    from django_durable_tasks.models import Task
    from django_durable_tasks.states import runs
    from django_durable_tasks.tasks import attempts

    def forged(run: Any) -> Any:
        row = Task.objects.filter(pk=run.task_id).values(*tokens).first()
        return run if row is None else run._replace(**row)

    succeed, fail = runs.succeed, attempts.fail
    runs.succeed = lambda run, result, worker: succeed(forged(run), result, worker)
    attempts.fail = lambda run, outcome, worker: fail(forged(run), outcome, worker)


def _without_the_guard_of_endings() -> None:
    with_text("succeed", (_GUARD, ""))
    _with_the_row_s_own("epoch", "run_id")


def _without_the_guard_of_positions() -> None:
    from django_durable_tasks.models import Task
    from django_durable_tasks.tasks import attempts

    write = attempts.write_position

    def unguarded(run: Any, position: str, progress: str | None) -> bool:
        rows = Task.objects.filter(pk=run.task_id).values("epoch", "run_id")
        return write(run._replace(**dict(rows.first() or {})), position, progress)

    attempts.write_position = unguarded


def _without_run_id() -> None:
    _with_the_row_s_own("run_id")


def _without_republishing() -> None:
    from django_durable_tasks.scheduler.republishing import Comparison

    setattr(Comparison, "compare", lambda self, one: 0)  # noqa: B010 - mypy knows it as a method


def _without_leaving_the_heartbeat() -> None:
    from django_durable_tasks.celery.live_runs import LeaseHeartbeat

    setattr(LeaseHeartbeat, "remove", lambda self, live: None)  # noqa: B010 - mypy knows it as a method


def _without_recording_by_the_task_class() -> None:
    from django_durable_tasks.celery import gate
    from django_durable_tasks.states.machine import Outcome, Verdict, decide
    from django_durable_tasks.tasks.attempts import spent

    def silent(live: Any, outcome: Outcome, followups: Sequence[Any] = ()) -> Verdict:
        return decide(outcome, spent(live.run))

    setattr(gate, "close", silent)  # noqa: B010 - mypy knows it as a function


def _without_the_grace_after_an_outage() -> None:
    from django_durable_tasks.cluster.nodes import HeartbeatMonitor
    from django_durable_tasks.conf import settings
    from django_durable_tasks.scheduler import jobs

    class Impatient(HeartbeatMonitor):
        """Measures silence by the clock, and assumes constant contact."""

        def __init__(self) -> None:
            super().__init__()
            self.heard: dict[uuid.UUID, tuple[Any, float]] = {}
            self.kept: dict[uuid.UUID, tuple[Any, float]] = {}

        def record(self, beats_now: Any, at: float, within: float, leases: Any = None) -> None:
            super().record(beats_now, at, within, leases)
            self.contact = 1_000_000
            self.heard = self._since(self.heard, beats_now)
            self.kept = self._since(self.kept, leases or {})

        @staticmethod
        def _since(
            before: dict[uuid.UUID, tuple[Any, float]], values: Any
        ) -> dict[uuid.UUID, tuple[Any, float]]:
            new = {key: (value, time.monotonic()) for key, value in values.items()}
            return {
                key: before[key] if before.get(key, (None,))[0] == new[key][0] else new[key]
                for key in new
            }

        def missed(self) -> None:
            """Forgive nothing."""

        def silent(self, looks: int) -> list[uuid.UUID]:
            oldest = time.monotonic() - looks * settings().NODE_HEARTBEAT
            return [node for node, (_, at) in self.heard.items() if at < oldest]

        def unrenewed(self, looks: int) -> dict[uuid.UUID, tuple[Any, int]]:
            oldest = time.monotonic() - looks * settings().NODE_HEARTBEAT
            return {task: (lease, 1_000) for task, (lease, at) in self.kept.items() if at < oldest}

    setattr(jobs, "HeartbeatMonitor", Impatient)  # noqa: B010 - mypy knows it as a class


# Recurring tasks ----------------------------------------------------------------------------------


def _without_the_unique_fire() -> None:
    from django_durable_tasks.schedules import trigger
    from django_durable_tasks.schedules.ledger import LedgerEntry

    setattr(LedgerEntry, "unique_fire_time", None)  # noqa: B010 - mypy knows it as a property
    trigger.idempotency_key = lambda recurring_task_id, fire_time: str(uuid.uuid4())


def _with_the_watermark_after_the_commit() -> None:
    from django.db import transaction

    from django_durable_tasks.schedules import trigger, writes

    def later(moves: Sequence[Any]) -> None:
        transaction.on_commit(lambda: writes.advance(moves))

    setattr(trigger, "advance", later)  # noqa: B010 - mypy knows it as a function


def _without_the_overlap_check() -> None:
    from django_durable_tasks.limits import overlap

    setattr(overlap, "admitted", list)  # noqa: B010 - mypy knows it as a function


def _with_a_tick_that_writes_what_it_read() -> None:
    """Read rows without a lock, and write them completely, which can undo a pause."""
    from django_durable_tasks.models import RecurringTask
    from django_durable_tasks.schedules import trigger as recurring_trigger
    from django_durable_tasks.schedules import writes as recurring_writes
    from django_durable_tasks.schedules.trigger import DueState

    read: dict[Any, DueState] = {}

    def unlocked(selection: recurring_trigger.DueSelection) -> list[DueState]:
        rows = selection.rows()
        rows = rows if selection.keys is None else rows.filter(pk__in=selection.keys)
        columns = rows.values_list(*DueState._fields)[: selection.limit]
        states = sorted(map(DueState._make, columns))
        read.update({state.id: state for state in states})
        return states

    def whole(moves: Sequence[Any]) -> None:
        recurring_writes.advance(moves)
        for move in moves:
            RecurringTask.objects.unguarded().filter(pk=move.pk).update(
                status=move.status or read[move.pk].status,
                status_reason=move.reason,
                revision=move.revision,
                next_run_at=move.next_run_at,
                watermark_at=move.watermark_at,
            )

    setattr(recurring_trigger, "_locked", unlocked)  # noqa: B010 - mypy knows it as a function
    setattr(recurring_trigger, "advance", whole)  # noqa: B010 - mypy knows it as a function


MUTANTS: dict[str, Callable[[], None]] = {
    "ending": _without_the_guard_of_endings,
    "run_id": _without_run_id,
    "position": _without_the_guard_of_positions,
    "republish": _without_republishing,
    "heartbeat": _without_leaving_the_heartbeat,
    "recording": _without_recording_by_the_task_class,
    "grace": _without_the_grace_after_an_outage,
    "fire": _without_the_unique_fire,
    "watermark": _with_the_watermark_after_the_commit,
    "slot": _without_the_overlap_check,
    "pause": _with_a_tick_that_writes_what_it_read,
    "order": graphs.with_locks_in_any_order,
    "unlocked": graphs.without_the_lock_of_rows,
    "flag": graphs.without_the_flag_of_edges,
    "blind": graphs.with_a_blind_counter,
    "hasty": crashes.with_a_message_before_the_commit,
    "halves": crashes.with_an_ending_in_two_transactions,
    "followups": crashes.with_followups_after_the_commit,
    "callers": graphs.with_locks_of_running_rows_in_callers_transactions,
    "marks": graphs.without_the_marks_of_upstreams_that_run,
    "counts": counts.without_the_position,
    "batch_crashes": batches.with_counted_crashes,
    "hand_over": batches.with_a_hand_over_that_counts_nothing,
    "batch_return": batches.without_the_owner_of_undone_starts,
    "batch_epoch": batches.without_the_epoch_of_successes,
    "batch_run_id": batches.without_the_run_id_of_successes,
    "batch_take": batches.with_batches_of_all_tasks,
    "batch_limited": batches.with_limited_batches_of_all_tasks,
    "batch_claim": batches.with_claims_of_tasks_in_batches,
    "batch_message": batches.with_any_number_of_batch_messages,
}
