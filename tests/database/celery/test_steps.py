"""Steps and loops continue in the next attempt where the last one has stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import durable_task
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import RunInterrupted
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.states import endings
from django_durable_tasks.store.clock import database_now
from tests.delivery import run_task, trace
from tests.factories import a_task

pytestmark = pytest.mark.django_db(transaction=True)

Script = Callable[[Any], Any]
_scripts: list[Script] = []
seen: list[Any] = []


class Stopped(Exception):
    """An error of a function."""


@durable_task(bind=True, name="tests.steps.scripted", max_attempts=9)
def scripted(self: Any) -> Any:
    """Run what the test has appended last."""
    return _scripts[-1](self)


@durable_task(bind=True, name="tests.steps.atomically", atomic=True, max_attempts=1)
def atomically(self: Any) -> Any:
    """Run it in one transaction."""
    return _scripts[-1](self)


@durable_task(bind=True, name="tests.steps.batched", batch=2)
def batched(self: Any) -> Any:
    """Run it in a batch."""
    return _scripts[-1](self)


@durable_task(bind=True, name="tests.steps.coroutine", max_attempts=9)
async def coroutine(self: Any) -> Any:
    """Await what the test has appended last."""
    return await _scripts[-1](self)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what was seen, and let no worker be stopping."""
    seen.clear()
    yield
    _scripts.clear()
    process_runs.share_last_start()


def groups(number: int) -> None:
    Group.objects.bulk_create([Group(name=f"group {place:04}") for place in range(number)])


def new(task: Any = scripted) -> Task:
    return a_task(Status.QUEUED, name=task.name)


def attempt(row: Task, script: Script) -> Task:
    """Run an attempt of the task, and return it as it is then."""
    _scripts.append(script)
    row.refresh_from_db()
    if row.status == Status.PENDING:
        Task.objects.unguarded().filter(pk=row.pk).update(status=Status.QUEUED)
        row.refresh_from_db()
    trace(row)
    row.refresh_from_db()
    return row


def done_of(row: Task, name: str = "groups") -> int:
    assert isinstance(row.position, dict)
    done: int = row.position[name]["done"]
    return done


def last_log(row: Task) -> TaskExecutionLog:
    found = TaskExecutionLog.objects.filter(task=row).order_by("pk").last()
    assert found is not None
    return found


def stop_after(number: int) -> None:
    """Fail in the block of the item after this many."""
    if len(seen) == number:
        raise Stopped


def over_groups(**options: Any) -> Script:
    def body(self: Any) -> None:
        for group in self.durable.iterate(Group.objects.all(), step="groups", **options):
            stop_after(options.get("total") or -1)
            seen.append(group.name)

    return body


# Functions.


def test_a_finished_step_is_not_called_again_and_returns_what_it_returned() -> None:
    def charge(amount: int, *, currency: str) -> Any:
        seen.append(amount)
        return {"amount": (amount, currency)}

    def body(self: Any) -> Any:
        receipt = self.durable.step("charge", charge, 5, currency="EUR")
        if self.durable.attempt == 1:
            raise Stopped
        return receipt

    row = attempt(new(), body)
    assert (row.status, seen, row.progress) == (
        "PENDING",
        [5],
        {"done": 1, "total": None, "note": "charge"},
    )
    row = attempt(row, body)
    assert (row.status, seen, row.result) == ("SUCCESS", [5], {"amount": [5, "EUR"]})


def test_a_step_that_failed_is_called_again() -> None:
    def charge() -> None:
        seen.append("called")
        raise Stopped

    row = new()
    for _ in range(2):
        row = attempt(row, lambda self: self.durable.step("charge", charge))
    assert seen == ["called"] * 2
    assert (row.failures, row.position) == (2, None)


def test_an_atomic_step_and_its_writes_are_one_transaction() -> None:
    def create() -> int:
        group = Group.objects.create(name="one")
        if not seen:
            seen.append("failed")
            raise Stopped
        return int(group.pk)

    def body(self: Any) -> Any:
        return self.durable.step("create", create, atomic=True)

    row = attempt(new(), body)
    assert (Group.objects.count(), row.position) == (0, None)
    row = attempt(row, body)
    assert (Group.objects.count(), row.status) == (1, "SUCCESS")


def test_an_atomic_step_of_a_run_that_was_fenced_is_rolled_back() -> None:
    def body(self: Any) -> None:
        def create() -> None:
            Group.objects.create(name="one")
            Task.objects.unguarded().filter(pk=row.pk).update(epoch=99)

        self.durable.step("create", create, atomic=True)

    row = new()
    attempt(row, body)
    assert (Group.objects.count(), row.position) == (0, None)


@pytest.mark.postgresql
def test_an_atomic_step_at_another_isolation_level_fails_with_its_name() -> None:
    def create() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        Group.objects.create(name="one")
        process_runs.leases.renew()  # which changes the row of the task

    row = attempt(new(), lambda self: self.durable.step("create", create, atomic=True))
    assert "Use READ COMMITTED" in row.last_error
    assert Group.objects.count() == 0


def test_a_block_that_was_finished_is_skipped() -> None:
    def body(self: Any) -> None:
        seen.extend("first" for _ in self.durable.step("first"))
        for _ in self.durable.step("second"):
            stop_after(1)
            seen.append("second")

    row = attempt(new(), body)
    stopped = list(seen)
    seen.append("again")
    row = attempt(row, body)
    assert (stopped, seen) == (["first"], ["first", "again", "second"])
    assert row.status == "SUCCESS"


# Loops.


@pytest.mark.parametrize("atomic", [False, True])
def test_the_next_attempt_continues_after_the_last_finished_batch_or_row(atomic: bool) -> None:
    groups(10)
    row = attempt(new(), over_groups(batch=4, total=6, atomic=atomic))
    first = len(seen)
    assert (first, row.status) == (6, "PENDING")
    done = 4 if atomic else 6  # the atomic batch was rolled back
    assert done_of(row) == done
    row = attempt(row, over_groups(batch=4, atomic=atomic))
    names = [f"group {place:04}" for place in range(10)]
    assert seen[first:] == names[done:]
    assert (row.status, row.progress) == (
        "SUCCESS",
        {"done": 10, "total": 6, "note": "groups"},
    )


def _failing_commit(then: tuple[str, ...] | None = None) -> Script:
    """Return a loop in atomic batches, the second of which cannot be committed in the first
    attempt. With ``then`` it catches the error and takes these steps.
    """

    def body(self: Any) -> None:
        try:
            for group in self.durable.iterate(
                Group.objects.all(), step="groups", batch=4, atomic=True
            ):
                seen.append(group.name)
                if self.durable.attempt == 1 and len(seen) == 6:
                    # Checked at the COMMIT.
                    User.groups.through.objects.create(user_id=10**9, group_id=10**9)
        except IntegrityError:
            if then is None:
                raise
            for name in then:
                self.durable.step(name, lambda: None)

    return body


checks_keys_at_commit = pytest.mark.skipif(
    not connection.features.supports_deferrable_unique_constraints
    and connection.vendor != "sqlite",
    reason="this database checks foreign keys at once, so that no COMMIT fails",
)


@checks_keys_at_commit
def test_the_items_of_a_batch_whose_commit_failed_are_done_again() -> None:
    groups(10)
    row = attempt(new(), _failing_commit())
    assert (row.status, len(seen), done_of(row)) == ("PENDING", 8, 4)
    row = attempt(row, _failing_commit())
    assert (row.status, seen[8:10]) == ("SUCCESS", ["group 0004", "group 0005"])


@checks_keys_at_commit
@pytest.mark.parametrize("then", [("after",), ()])
def test_a_commit_that_failed_cannot_be_passed_over(then: tuple[str, ...]) -> None:
    groups(10)
    row = attempt(new(), _failing_commit(then))
    assert row.status in ("PENDING", "FAILED")
    assert row.position is not None
    assert set(row.position) == {"groups"}
    assert done_of(row) == 4


def test_a_queryset_is_read_by_its_key_in_batches_without_a_cursor_or_an_offset() -> None:
    groups(25)
    with CaptureQueriesContext(connection) as statements:
        row = attempt(new(), over_groups(batch=10))
    reads = [
        one["sql"] for one in statements if "auth_group" in one["sql"] and "LIMIT" in one["sql"]
    ]
    assert len(seen) == 25
    assert row.progress == {"done": 25, "total": 25, "note": "groups"}
    assert len(reads) == 4  # the count and three batches
    assert not any("OFFSET" in one for one in reads)
    assert [("> " in one) for one in reads] == [False, False, True, True]


def test_rows_are_read_in_the_order_of_a_unique_key_of_several_columns() -> None:
    owners = [
        User.objects.create(username=name, first_name="ab"[n % 2]) for n, name in enumerate("vwxyz")
    ]
    assert len(owners) == 5

    def body(self: Any) -> None:
        users = User.objects.order_by("-first_name", "username")
        for user in self.durable.iterate(users, step="users", batch=2):
            stop_after(3)
            seen.append(user.username)

    row = attempt(new(), body)
    seen.append("again")
    attempt(row, body)
    assert seen == ["w", "y", "v", "again", "x", "z"]


def test_a_row_that_a_join_returns_twice_is_one_item() -> None:
    groups(3)
    for group in Group.objects.all():
        group.permissions.set(Permission.objects.all()[:4])

    def body(self: Any) -> None:
        of_permissions = Group.objects.filter(permissions__isnull=False)
        rows = self.durable.iterate(of_permissions, step="groups", batch=2)
        seen.extend(group.name for group in rows)

    row = attempt(new(), body)
    assert (seen, row.status) == ([f"group {place:04}" for place in range(3)], "SUCCESS")


@pytest.mark.parametrize(
    "items", [lambda: list("abcdef"), lambda: range(6), lambda: (letter for letter in "abcdef")]
)
def test_any_iterable_continues_by_the_number_of_its_items(items: Callable[[], Any]) -> None:
    def body(self: Any) -> None:
        for item in self.durable.iterate(items(), step="items", batch=2):
            if not isinstance(row.position, dict):
                stop_after(3)
            seen.append(item)

    row = new()
    row = attempt(row, body)
    row = attempt(row, body)
    assert (seen, row.status) == (list(items()), "SUCCESS")
    assert (row.position or {})["items"]["ended"] is True


def test_an_ended_loop_yields_nothing_in_the_next_attempt() -> None:
    groups(3)

    def body(self: Any) -> None:
        over_groups()(self)
        if self.durable.attempt < 3:
            raise Stopped

    row = new()
    for _ in range(3):
        row = attempt(row, body)
    assert (len(seen), row.status) == (3, "SUCCESS")


def test_stop_ends_an_atomic_loop_and_keeps_what_is_done() -> None:
    groups(5)

    def body(self: Any) -> None:
        rows = self.durable.iterate(Group.objects.all(), step="groups", batch=4, atomic=True)
        for group in rows:
            group.delete()
            if Group.objects.count() == 3:
                rows.stop()

    row = attempt(new(), body)
    assert (Group.objects.count(), row.status, done_of(row)) == (3, "SUCCESS", 2)


def test_a_loop_over_one_position_of_many_batches_is_left_by_break() -> None:
    groups(5)

    def body(self: Any) -> None:
        for group in self.durable.iterate(Group.objects.all(), step="groups", batch=2):
            if len(seen) == 3:
                break
            seen.append(group.name)
        self.durable.step("after", lambda: None)
        if self.durable.attempt == 1:
            raise Stopped

    row = attempt(new(), body)
    assert done_of(row) == 3
    seen.clear()
    attempt(row, body)
    assert seen == ["group 0003", "group 0004"]


def test_a_throttle_limits_the_batch() -> None:
    groups(25)
    with CaptureQueriesContext(connection) as statements:
        row = attempt(new(), over_groups(throttle="10/s"))
    reads = [one["sql"] for one in statements if one["sql"].endswith("LIMIT 10")]
    assert (len(seen), len(reads), row.status) == (25, 3, "SUCCESS")
    assert row.completed_at is not None
    assert row.started_at is not None
    assert (row.completed_at - row.started_at).total_seconds() >= 2  # never less than the throttle


# What is refused.


def _inside_of_a_transaction(self: Any) -> None:
    with transaction.atomic():
        for _ in self.durable.iterate(Group.objects.all(), step="groups"):
            pass


def _in_a_transaction_at_its_record(self: Any) -> None:
    rows = self.durable.iterate(Group.objects.all(), step="groups")
    with transaction.atomic():
        list(rows)


def _left_by_break(self: Any) -> None:
    for _ in self.durable.iterate(Group.objects.all(), step="groups", atomic=True):
        break


def _with(self: Any) -> None:
    with self.durable.step("groups"):
        pass


def _if(self: Any) -> None:
    if self.durable.step("groups"):
        pass


def _twice(self: Any) -> None:
    self.durable.step("groups", list)
    self.durable.step("groups", list)


def _over(items: Callable[[], Any], **options: Any) -> Script:
    def body(self: Any) -> None:
        for _ in self.durable.iterate(items(), step="groups", **options):
            pass

    return body


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (_inside_of_a_transaction, "inside of transaction.atomic"),
        (_in_a_transaction_at_its_record, "inside of transaction.atomic"),
        (_left_by_break, "call stop()"),
        (_with, "cannot be skipped"),
        (_if, "would not be seen"),
        (_twice, "its own name"),
        (_over(lambda: {1, 2}), "sort it"),
        (_over(lambda: Group.objects.all()[:2]), "sliced"),
        (_over(lambda: Group.objects.values("name")), "use only"),
        (_over(lambda: User.objects.order_by("first_name")), "order_by('first_name', 'pk')"),
        (_over(lambda: User.objects.order_by("last_login", "pk")), "never NULL"),
        (_over(lambda: User.objects.order_by("?")), "never NULL"),
        (_over(list, batch=0), "from 1 to"),
        (_over(list, throttle="5"), "throttle"),
    ],
)
def test_what_could_not_be_continued_is_refused_with_a_remedy(body: Script, text: str) -> None:
    groups(3)
    row = attempt(new(), body)
    assert row.status == "FAILED"  # without a retry
    assert text in row.last_error


def test_steps_of_an_atomic_task_are_refused() -> None:
    row = attempt(new(atomically), lambda self: self.durable.step("one", list))
    assert "atomic=True to the step" in row.last_error


def test_a_position_above_a_mebibyte_is_refused(settings: Any) -> None:
    def body(self: Any) -> None:
        for number in range(20):
            self.durable.step(f"step {number}", lambda: "x" * 60_000)

    row = attempt(new(), body)
    assert "iterate over items" in row.last_error
    assert len(row.position or {}) == 17


# Shutdowns, cancellations, fences.


def test_a_shutdown_interrupts_after_the_item_and_charges_nothing() -> None:
    groups(10)

    def body(self: Any) -> None:
        try:
            for group in self.durable.iterate(Group.objects.all(), step="groups", batch=4):
                seen.append(group.name)
                if len(seen) == 2:
                    process_runs.stop()
        except Exception:  # noqa: BLE001 - as careless functions do
            seen.append("caught")

    row = attempt(new(), body)
    assert (row.status, row.failures, row.crashes, row.attempts) == ("PENDING", 0, 0, 1)
    assert (len(seen), done_of(row)) == (2, 2)
    assert row.due_at is not None
    assert row.due_at <= database_now()
    entry = last_log(row)
    assert (entry.status, entry.traceback) == ("RETRY", "")
    assert entry.error_message.startswith("RunInterrupted: The worker is shutting down")
    process_runs.share_last_start()
    row = attempt(row, body)
    assert seen == [f"group {place:04}" for place in range(10)]
    assert (row.status, row.failures) == ("SUCCESS", 0)


def test_an_interruption_that_the_function_catches_is_no_success() -> None:
    groups(3)

    def body(self: Any) -> str:
        try:
            for group in self.durable.iterate(Group.objects.all(), step="groups"):
                seen.append(group.name)
                process_runs.stop()
        except RunInterrupted:
            pass
        return "done"

    row = attempt(new(), body)
    assert (row.status, row.result, len(seen)) == ("PENDING", None, 1)


def test_an_attempt_that_has_done_nothing_is_not_interrupted() -> None:
    """Otherwise a worker that restarts in a loop would interrupt a task for ever."""
    groups(3)
    process_runs.stop()
    row = new()
    for number in range(1, 4):
        row = attempt(row, over_groups(batch=2))
        assert len(seen) == number
    assert (row.status, row.failures, row.attempts) == ("SUCCESS", 0, 3)


def test_a_shutdown_interrupts_between_two_steps() -> None:
    def body(self: Any) -> None:
        for name in "abc":
            self.durable.step(name, seen.append, name)

    process_runs.stop()
    row = new()
    for number in range(1, 4):
        row = attempt(row, body)
        assert seen == list("abc")[:number]
    assert (row.status, row.failures, row.attempts) == ("SUCCESS", 0, 3)


def test_a_shutdown_interrupts_a_loop_of_a_task_in_a_batch() -> None:
    groups(5)
    _scripts.append(over_groups(batch=2))
    process_runs.stop()
    row = run_task(batched)
    assert (row.status, row.failures, row.crashes, done_of(row)) == ("PENDING", 0, 0, 1)


# ``async for``.


def _copying(number: int, **options: Any) -> Script:
    """Copy each group, and fail in the block of the item after this many."""

    async def body(self: Any) -> str:
        rows = Group.objects.filter(name__startswith="group")
        async for group in self.durable.iterate(rows, step="groups", **options):
            await Group.objects.acreate(name=f"copy of {group.name}")
            stop_after(number)
            seen.append(group.name)
        return "done"

    return body


@pytest.mark.parametrize("atomic", [False, True])
def test_the_next_attempt_of_a_coroutine_continues_too(atomic: bool) -> None:
    groups(10)
    row = attempt(new(coroutine), _copying(6, batch=4, atomic=atomic))
    assert (row.status, done_of(row)) == ("PENDING", 4 if atomic else 6)
    copies = Group.objects.filter(name__startswith="copy")
    # The item that failed had its effect. With ``atomic`` its batch was rolled back.
    assert copies.count() == (4 if atomic else 7)
    copies.filter(name="copy of group 0006").delete()
    row = attempt(row, _copying(-1, batch=4, atomic=atomic))
    assert (row.status, row.result, copies.count()) == ("SUCCESS", "done", 10)
    assert row.progress == {"done": 10, "total": 10, "note": "groups"}
    assert len(seen) == 6 + (6 if atomic else 4)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_shutdown_interrupts_a_coroutine_after_the_item(atomic: bool) -> None:
    groups(5)

    async def body(self: Any) -> None:
        async for group in self.durable.iterate(Group.objects.all(), step="groups", atomic=atomic):
            seen.append(group.name)
            if len(seen) == 2:
                process_runs.stop()

    row = attempt(new(coroutine), body)
    assert (row.status, row.failures, len(seen), done_of(row)) == ("PENDING", 0, 2, 2)
    assert last_log(row).error_message.startswith("RunInterrupted")
    process_runs.share_last_start()
    row = attempt(row, body)
    assert (row.status, seen) == ("SUCCESS", [f"group {place:04}" for place in range(5)])


@pytest.mark.parametrize("atomic", [False, True])
def test_a_coroutine_that_is_cancelled_in_an_item_repeats_it(atomic: bool) -> None:
    groups(3)

    async def body(self: Any) -> None:
        async for group in self.durable.iterate(
            Group.objects.all(), step="groups", batch=1, atomic=atomic
        ):
            await Group.objects.filter(pk=group.pk).aupdate(name=f"{group.name} {len(seen)}")
            seen.append(group.pk)
            if len(seen) == 2:
                await asyncio.Event().wait()

    row = a_task(Status.QUEUED, name=coroutine.name, max_attempts=9, options={"soft_timeout": 0.5})
    row = attempt(row, body)
    assert (row.status, done_of(row), len(seen)) == ("PENDING", 1, 2)
    names = ["group 0000 0", "group 0001" if atomic else "group 0001 1", "group 0002"]
    assert sorted(Group.objects.values_list("name", flat=True)) == names
    row = attempt(row, body)
    assert (row.status, len(seen), len(set(seen))) == ("SUCCESS", 4, 3)


def test_a_coroutine_is_cancelled_while_a_throttle_waits() -> None:
    groups(2)

    async def body(self: Any) -> None:
        rows = self.durable.iterate(Group.objects.all(), step="groups", throttle="1/m")
        seen.extend([group.pk async for group in rows])

    row = a_task(Status.QUEUED, name=coroutine.name, options={"timeout": 0.5})
    row = attempt(row, body)
    assert last_log(row).error_message.startswith("RunOutOfTime")
    assert done_of(row) == 1


def test_stop_break_and_a_block_that_runs_once_in_a_coroutine() -> None:
    groups(6)

    async def body(self: Any) -> None:
        seen.extend(["once" async for _ in self.durable.step("once")])
        rows = self.durable.iterate(Group.objects.all(), step="groups", batch=4, atomic=True)
        async for group in rows:
            seen.append(group.name[-1])
            if len(seen) == 4:
                rows.stop()
        async for item in self.durable.iterate(["a", "b"], step="items"):
            seen.append(item)
            break
        if self.durable.attempt == 1:
            raise Stopped

    row = attempt(new(coroutine), body)
    assert seen == ["once", "0", "1", "2", "a"]
    assert done_of(row) == 3
    attempt(row, body)
    assert seen == ["once", "0", "1", "2", "a", "3", "4", "5", "a"]


def test_a_plain_loop_in_a_coroutine_is_refused() -> None:
    async def body(self: Any) -> None:
        for _ in self.durable.iterate(Group.objects.all(), step="groups"):
            pass

    row = attempt(new(coroutine), body)
    assert "write `async for` instead of `for`" in row.last_error
    assert row.position is None


def test_a_cancelled_task_stops_at_the_next_item() -> None:
    groups(5)

    def body(self: Any) -> None:
        for group in self.durable.iterate(Group.objects.all(), step="groups"):
            seen.append(group.name)
            if len(seen) == 2:
                Task.objects.filter(pk=row.pk).cancel(by="anna")
                process_runs.leases.renew()

    row = new()
    row = attempt(row, body)
    assert (row.status, len(seen)) == ("CANCELLED", 2)


def test_a_run_that_was_superseded_cannot_move_the_position() -> None:
    groups(5)

    def body(self: Any) -> None:
        for group in self.durable.iterate(Group.objects.all(), step="groups", batch=2, atomic=True):
            group.name = f"changed {group.name}"
            group.save()
            seen.append(group.name)
            if len(seen) == 3:
                Task.objects.unguarded().filter(pk=row.pk).update(epoch=row.epoch + 7)

    row = new()
    row = attempt(row, body)
    assert done_of(row) == 2
    assert Group.objects.filter(name__startswith="changed").count() == 2
    assert len(seen) == 4


# The position of a task: replays, edits, encryption, costs.


def test_a_replay_continues_and_one_with_arguments_starts_again() -> None:
    groups(4)

    def body(self: Any) -> None:
        for group in self.durable.iterate(Group.objects.all(), step="groups", batch=1):
            stop_after(2)
            seen.append(group.name)

    row = a_task(Status.QUEUED, name=scripted.name, max_attempts=1)
    row = attempt(row, body)
    assert (row.status, len(seen)) == ("FAILED", 2)
    Task.objects.filter(pk=row.pk).replay(by="anna")
    row.refresh_from_db()
    assert done_of(row) == 2
    row = attempt(row, body)
    assert row.status == "FAILED"
    Task.objects.filter(pk=row.pk).replay(by="anna", args=[])
    row.refresh_from_db()
    assert row.position is None


def test_a_task_that_runs_again_after_its_success_starts_at_the_beginning() -> None:
    row = attempt(new(), lambda self: self.durable.step("one", seen.append, 1))
    assert (row.status, row.position) == ("SUCCESS", {"one": {"result": None}})
    endings.replay(Task.objects.filter(pk=row.pk), "rerun")
    row.refresh_from_db()
    assert row.position is None


def test_other_arguments_start_at_the_beginning() -> None:
    row = a_task(Status.PENDING, name=scripted.name, key="k", position={"one": {"result": None}})
    Task.objects.filter(pk=row.pk).reschedule(database_now(), by="anna")
    row.refresh_from_db()
    assert row.position is not None
    scripted.using(key="k").schedule()
    row.refresh_from_db()
    assert (row.position, Task.objects.count()) == (None, 1)


def test_a_position_is_encrypted_like_the_arguments(settings: Any) -> None:
    key = "a:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "ENCRYPTION_KEYS": [key]}

    def body(self: Any) -> Any:
        found = self.durable.step("secret", lambda: "hidden")
        if self.durable.attempt == 1:
            raise Stopped
        return found

    row = attempt(new(), body)
    with connection.cursor() as cursor:
        cursor.execute("SELECT position, encryption_key FROM durable_tasks_task")
        stored, key_id = cursor.fetchone()
    assert "hidden" not in str(stored)
    assert "$encrypted" in str(stored)
    assert key_id == "a"
    row = attempt(row, body)
    assert row.result == "hidden"


def test_a_task_without_steps_executes_no_further_statement() -> None:
    with CaptureQueriesContext(connection) as statements:
        attempt(new(), lambda self: self.durable.progress(1))
    assert not any("position" in one["sql"] and "UPDATE" in one["sql"] for one in statements)


def test_the_function_that_reports_its_own_progress_keeps_it() -> None:
    groups(3)

    def body(self: Any) -> None:
        for group in self.durable.iterate(Group.objects.all(), step="groups", batch=1):
            self.durable.progress(len(seen), note=f"own {group.name}")
            seen.append(group.name)
            process_runs.leases.renew()

    row = attempt(new(), body)
    assert row.progress == {"done": 2, "total": None, "note": "own group 0002"}
