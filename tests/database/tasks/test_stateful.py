"""Hypothesis acts as users, schedulers, brokers and workers on the engine and compares it with a
small reference.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from django_durable_tasks.choices import TERMINAL, WITH_DUE_AT, LogStatus, Status
from django_durable_tasks.exceptions import IdempotencyConflict, TransitionRefused
from django_durable_tasks.models import DeadLetter, Task
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.scheduler import reap_dead_nodes
from django_durable_tasks.scheduler.reap_dead_nodes import leases
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, operator_actions
from django_durable_tasks.tasks import claim as task_claim
from tests.database.tasks.reference import DAY, HOUR, SOON, Reference, Row
from tests.database.transitions.transition_calls import PLACE
from tests.factories import QUEUE
from tests.messages import claim_due
from tests.process_state import new_process_state
from tests.project import tasks
from tests.repetitions import repetitions
from tests.stateful import applies_if, run_machine

picks = st.integers(min_value=0, max_value=10_000)
keys = st.sampled_from(["k1", "k2"])
CROWD = 6  # few tasks, so that events affect each other
EXPIRY, LATER = DAY / 2, HOUR / 2
CLOSED_BY_FAIL = (LogStatus.RETRY, LogStatus.FAILED, LogStatus.CANCELLED)


def _ahead(seconds: float) -> datetime:
    return database_now() + timedelta(seconds=seconds)


def _pick(items: list[Any], number: int) -> Any:
    return items[number % len(items)]


class Lifecycle(RuleBasedStateMachine):
    """The operations of the engine as rules. Messages and runs are kept in lists, from which they
    arrive late, twice or never.
    """

    def __init__(self) -> None:
        super().__init__()
        Task.objects.unguarded().all().delete()
        connection.run_on_commit.clear()
        new_process_state()
        self.reference = Reference()
        self.messages: list[TaskMessage] = []
        self.runs: list[Run] = []
        self.recorded: dict[uuid.UUID, LogStatus] = {}

    # Users ----------------------------------------------------------------------------------------

    def _created(self, row: Task, **known: Any) -> None:
        status = Status(row.status)
        self.reference.rows.append(
            Row(row.pk, status, row.epoch, max_attempts=row.max_attempts, **known)
        )
        if status == Status.QUEUED:
            self.messages.append(TaskMessage(row.pk, row.epoch, 1, row.name, QUEUE, row.priority))

    @rule(
        later=st.booleans(),
        expires=st.booleans(),
        tries=st.integers(1, 3),
        crashes=st.integers(1, 3),
    )
    @applies_if(lambda self: len(self.reference.rows) < CROWD // 2)
    def enqueue(self, later: bool, expires: bool, tries: int, crashes: int) -> None:
        """A plain call, for now or for later."""
        options: dict[str, Any] = {"run_at": _ahead(LATER)} if later else {}
        options |= {"expires_at": _ahead(EXPIRY)} if expires else {}
        row = tasks.noop.using(
            queue=QUEUE, max_attempts=tries, max_crashes=crashes, **options
        ).schedule()
        assert row.status == (Status.PENDING if later else Status.QUEUED)
        self._created(row, due=LATER if later else 0.0, expires=expires, max_crashes=crashes)

    @rule(key=keys, tries=st.integers(1, 3), later=st.booleans())
    @applies_if(lambda self: len(self.reference.rows) < CROWD)
    def enqueue_by_key(self, key: str, tries: int, later: bool) -> None:
        """A call with a caller's key: new, an update, or a second task beside a running one."""
        options: dict[str, Any] = {"run_at": _ahead(LATER)} if later else {}
        row = tasks.noop.using(queue=QUEUE, key=key, max_attempts=tries, **options).schedule()
        holder, due = self.reference.holder(open_key=key), LATER if later else 0.0
        if holder is None or holder.status == Status.RUNNING:
            if holder is not None:
                holder.open_key = None
            self._created(row, due=due, key=key, open_key=key)
            return
        assert row.pk == holder.task_id
        if holder.status == Status.QUEUED:
            holder.wait()
        holder.due, holder.max_attempts, holder.expires, holder.max_crashes = due, tries, False, 3
        holder.epoch += 1

    @rule(subject=keys)
    @applies_if(lambda self: len(self.reference.rows) < CROWD)
    def enqueue_unique(self, subject: str) -> None:
        """A call of a unique task."""
        row, unique = (
            tasks.unique.using(queue=QUEUE).schedule(subject),
            f"tests.project.tasks.unique:{subject}",
        )
        holder = self.reference.holder(open_unique=unique)
        if holder is None:
            self._created(row, unique=unique, open_unique=unique)
        else:
            assert row.pk == holder.task_id

    @rule(key=keys, payload=st.integers(1, 2))
    def enqueue_once(self, key: str, payload: int) -> None:
        """A call with an idempotency key: returns the first task, or conflicts."""
        call, first = (
            tasks.add.using(queue=QUEUE, idempotency_key=key),
            self.reference.holder(idempotency=key),
        )
        if first is not None and first.payload != payload:
            with pytest.raises(IdempotencyConflict):
                call.schedule(payload, 0)
            return
        row = call.schedule(payload, 0)
        if first is None:
            self._created(row, idempotency=key, payload=payload)
        else:
            assert row.pk == first.task_id

    @rule(pick=picks)
    @applies_if(lambda self: len(self.reference.rows) >= CROWD // 2)
    def cancel(self, pick: int) -> None:
        """A task in any status is cancelled."""
        row: Row = _pick(self.reference.rows, pick)
        reached = operator_actions.cancel(Task.objects.filter(pk=row.task_id), by="bob").total
        assert reached == (row.is_open and not row.asked)
        row.cancel()

    @rule(pick=picks)
    @applies_if(lambda self: self.reference.rows)
    def replay(self, pick: int) -> None:
        """An ended task is replayed, if there is one."""
        ended = [row for row in self.reference.rows if not row.is_open]
        row: Row = _pick(ended or self.reference.rows, pick)
        question = Task.objects.filter(pk=row.task_id)
        if self.reference.may_replay(row):
            assert operator_actions.replay(question, by="bob") == [row.task_id]
            row.replay()
        elif row.status in TERMINAL - {Status.SUCCESS}:
            with pytest.raises(TransitionRefused):
                operator_actions.replay(question, by="bob")
        else:
            assert operator_actions.replay(question, by="bob") == []

    @rule(pick=picks)
    @applies_if(lambda self: self.reference.rows)
    def discard(self, pick: int) -> None:
        """A dead letter is discarded."""
        row: Row = _pick(self.reference.rows, pick)
        closed = operator_actions.discard_letters(
            DeadLetter.objects.filter(task_id=row.task_id), by="bob", reason=""
        )
        assert closed == row.letter
        row.letter = False

    # Schedulers -----------------------------------------------------------------------------------

    @rule(ahead=st.sampled_from([SOON, HOUR, DAY]))
    def claim(self, ahead: float) -> None:
        """A scheduler claims due tasks. Tasks past their expiry expire."""
        due = self.reference.due(ahead)
        messages = claim_due(QUEUE, _ahead(ahead), 1_000, PLACE.node)
        late = [row for row in due if row.expires and ahead == DAY]
        assert {message.task_id for message in messages} == {
            row.task_id for row in due if row not in late
        }
        for row in due:
            row.status, row.epoch = Status.QUEUED, row.epoch + 1
        self._expire(late)
        self.messages += messages

    @rule(ahead=st.sampled_from([SOON, HOUR, DAY]))
    def republish(self, ahead: float) -> None:
        """A scheduler republishes tasks that have not started."""
        queued = self.reference.of(Status.QUEUED) if ahead > SOON else []
        late = [row for row in queued if row.expires and ahead == DAY]
        messages = task_claim.republish(
            Task.objects.republish_due(_ahead(ahead)), _ahead(ahead), 1_000
        )
        expected = {(row.task_id, row.epoch) for row in queued if row not in late}
        assert {(message.task_id, message.epoch) for message in messages} == expected
        self._expire(late)
        self.messages += messages

    def _expire(self, rows: list[Row]) -> None:
        for row in rows:
            row.close(Status.EXPIRED)

    @rule(pick=picks)
    @applies_if(lambda self: self.messages)
    def return_to_pending(self, pick: int) -> None:
        """The broker did not accept a message, and the scheduler notices it now or much later."""
        message = _pick(self.messages, pick)
        row = self.reference.get(message.task_id)
        fits = row.status == Status.QUEUED and row.epoch == message.epoch
        assert task_claim.return_to_pending([message]) == fits
        if fits:
            row.wait()

    @rule()
    def lose_all(self) -> None:
        """All workers die."""
        running = self.reference.of(Status.RUNNING)
        assert len(reap_dead_nodes.mark_lost(leases(), reap_dead_nodes.LEASE_EXPIRED)) == len(
            running
        )
        for row in running:
            row.lose()

    # The broker -----------------------------------------------------------------------------------

    @rule(pick=picks)
    @applies_if(lambda self: self.messages)
    def lose_message(self, pick: int) -> None:
        """The broker forgets a message."""
        self.messages.pop(pick % len(self.messages))

    # Workers --------------------------------------------------------------------------------------

    @rule(pick=picks, keep=st.sampled_from([True, True, False]))
    @applies_if(lambda self: self.messages)
    def deliver(self, pick: int, keep: bool) -> None:
        """A message arrives, perhaps to arrive again."""
        message = _pick(self.messages, pick)
        if not keep:
            self.messages.remove(message)
        self._deliver(message)

    @rule()
    def busy_minute(self) -> None:
        """All waiting tasks are claimed, and every message arrives once. Most stay in the list to
        arrive again.
        """
        self.claim(HOUR)
        for message in list(self.messages):
            self._deliver(message)
        del self.messages[: -2 * CROWD]

    def _deliver(self, message: TaskMessage) -> None:
        row = self.reference.get(message.task_id)
        run = attempts.open_run(message.task_id, message.epoch, PLACE, "id", None)
        fits = row.status == Status.QUEUED and row.epoch == message.epoch
        assert isinstance(run, Run) == fits, run
        if isinstance(run, Run):
            row.start(run.run_id)
            self.runs.append(run)

    @rule(pick=picks)
    @applies_if(lambda self: self.runs)
    def succeed(self, pick: int) -> None:
        """A body returns. The run may have been lost, or its ending recorded before."""
        self._succeed(_pick(self.runs, pick))

    def _succeed(self, run: Run) -> None:
        row = self.reference.get(run.task_id)
        accepted = attempts.succeed(run, None, "w")
        if row.run == run.run_id:
            row.close(Status.SUCCESS)
            self.recorded[run.run_id] = LogStatus.SUCCESS
        assert accepted == (self.recorded.get(run.run_id) == LogStatus.SUCCESS)

    @rule(pick=picks, retryable=st.booleans())
    @applies_if(lambda self: self.runs)
    def fail(self, pick: int, retryable: bool) -> None:
        """A body raises. The run may have been lost, or its ending recorded before."""
        run: Run = _pick(self.runs, pick)
        row = self.reference.get(run.task_id)
        verdict = attempts.fail(
            run, Outcome(kind=EndingKind.FAILED, error="E", delay=60.0, retryable=retryable), "w"
        )
        if row.run == run.run_id:
            self.recorded[run.run_id] = row.fail(retryable=retryable)
        assert (verdict is not None) == (self.recorded.get(run.run_id) in CLOSED_BY_FAIL)

    @rule(pick=picks)
    @applies_if(lambda self: self.runs)
    def ignore(self, pick: int) -> None:
        """A body raises Ignore."""
        run: Run = _pick(self.runs, pick)
        row = self.reference.get(run.task_id)
        verdict = attempts.fail(run, Outcome(kind=EndingKind.IGNORED), "w")
        if row.run == run.run_id:
            row.close(Status.CANCELLED)
            self.recorded[run.run_id] = LogStatus.CANCELLED
        assert (verdict is not None) == (self.recorded.get(run.run_id) in CLOSED_BY_FAIL)

    @rule(pick=picks)
    @applies_if(lambda self: self.runs)
    def heartbeat(self, pick: int) -> None:
        """A run renews its lease, and receives whether its cancellation is requested."""
        run: Run = _pick(self.runs, pick)
        row = self.reference.get(run.task_id)
        owned = attempts.heartbeat([(run.task_id, run.epoch, run.run_id, 60.0)])
        assert owned == ({run.run_id: row.asked} if row.run == run.run_id else {})

    def _frozen(self) -> list[Run]:
        return [
            run
            for run in self.runs
            if self.reference.get(run.task_id).run not in (None, run.run_id)
        ]

    @rule(pick=picks)
    @applies_if(lambda self: self._frozen())
    def wake(self, pick: int) -> None:
        """A worker that was declared dead continues, and records a success while another run is
        active.
        """
        self._succeed(_pick(self._frozen(), pick))

    # Always ---------------------------------------------------------------------------------------

    @invariant()
    def the_database_is_as_the_reference_says(self) -> None:
        """Statuses, epochs, budgets, deadlines and dead letters equal the reference; therefore an
        epoch never decreases.
        """
        opened = set(DeadLetter.objects.open().values_list("task_id", flat=True))
        found = {row.pk: row for row in Task.objects.all()}
        assert set(found) == {row.task_id for row in self.reference.rows}
        for row in self.reference.rows:
            stands = found[row.task_id]
            assert row.seen() == (
                stands.status,
                stands.epoch,
                stands.attempts,
                stands.failures,
                stands.crashes,
                stands.pk in opened,
                stands.cancel_requested_at is not None,
            )
            assert (stands.due_at is not None) == (stands.status in WITH_DUE_AT)
            assert (stands.lease_until is not None) == (stands.status == Status.RUNNING)
            assert (stands.open_key, stands.open_unique_key) == (row.open_key, row.open_unique)
            assert stands.run_id == row.run or row.run is None


@pytest.mark.django_db
@pytest.mark.timeout(300)
def test_the_engine_equals_the_reference_in_any_order_of_events() -> None:
    run_machine(
        Lifecycle, examples=repetitions(60 if connection.vendor == "sqlite" else 20), steps=50
    )
