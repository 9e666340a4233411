"""Races in a graph: each task is released once, no ending and no edge is lost, no cycle closes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.dependencies import edges, edit, replay, resolve
from django_durable_tasks.dependencies.rules import edges_to
from django_durable_tasks.exceptions import DependencyCycle
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.store import errors
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, operator_actions
from django_durable_tasks.workflows import operations, runs
from django_durable_tasks.workflows.builder import AddedTasks
from tests.concurrency.racing import ROUNDS, no_errors, race
from tests.database.dependencies.worker_and_leader import (
    HOPELESS,
    begin,
    fail,
    of,
    question,
    recount,
    resolve_all,
    statuses,
    succeed,
)
from tests.factories import QUEUE, a_task
from tests.project.tasks import echo, noop

READY = ("PENDING", "QUEUED")
MANY = 3 * ROUNDS


def _after(*upstreams: Any, **options: Any) -> Task:
    return noop.using(queue=QUEUE, depends_on=list(upstreams), **options).schedule()


def _end(run: Run, *, well: bool = True) -> None:
    """End a run and resolve its dependents, as a worker does."""
    assert attempts.succeed(run, None, "w") if well else attempts.fail(run, HOPELESS, "w")
    resolve.resolve_endings_of(run.task_id)


def _link(low: Task, *high: Task) -> int | type[Exception]:
    try:
        return edit.link(low.pk, edges_to(list(high)))
    except DependencyCycle as refused:
        return type(refused)


def test_two_upstreams_that_end_at_the_same_instant_release_once() -> None:
    for _ in range(MANY):
        ups = [begin(a_task()) for _ in range(2)]
        downs = [_after(*(run.task_id for run in order)) for order in (ups, ups[::-1])]
        sweeps = [partial(resolve.resolve_endings, 1), partial(resolve.resolve_endings, 9)]
        no_errors(race([*(partial(_end, run) for run in ups), *sweeps]))
        resolve_all()
        found = list(
            Task.objects.filter(pk__in=[down.pk for down in downs]).values_list("status", "epoch")
        )
        assert [(status in READY, epoch) for status, epoch in found] == [(True, 1)] * 2
        assert not edges.endings().exists()


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_an_edge_added_between_the_read_and_the_locks_of_a_replay_is_blocked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    up = a_task(due=3_600)
    before, low = _after(up), a_task(due=3_600, on_upstream_failure="WAIT")
    Task.objects.unguarded().filter(pk=up.pk).update(due_at=up.created_at)
    fail(up)
    resolve_all()
    look, linked = replay._with_all_below, list[Any]()

    def looked(asked: set[uuid.UUID]) -> list[uuid.UUID]:
        found = look(asked)
        if not linked:
            linked.extend(no_errors(race([partial(_link, low, up)])))
            no_errors(race([resolve_all]))
        return found

    monkeypatch.setattr(replay, "_with_all_below", looked)
    operator_actions.replay(question(up), by="anna")
    assert linked
    assert list(
        TaskDependency.objects.filter(depends_on=up.pk).values_list("outcome", flat=True)
    ) == [None, None]
    succeed(up)
    resolve_all()
    assert [one in READY for one in statuses(before, low)] == [True, True]
    assert not recount()


def test_processes_that_resolve_the_same_dependents_do_not_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "_TRIES", 1)  # the retry would hide a deadlock
    for _ in range(
        2 * ROUNDS
    ):  # enough to find an unordered lock each time, also on a busy machine
        ups = [begin(a_task()) for _ in range(6)]
        keys = [run.task_id for run in ups]
        downs = [_after(*keys) for _ in range(20)]

        def sweep() -> None:
            while resolve.resolve_endings(1).events:
                pass

        no_errors(race([*(partial(_end, run) for run in ups), sweep, sweep]))
        resolve_all()
        assert set(statuses(*downs)) <= set(READY)


def test_a_duplicate_ending_event_counts_once() -> None:
    for _ in range(ROUNDS):
        up = a_task()
        down = _after(up, a_task())
        succeed(up)
        ending = edges.endings().get(task_id=up.pk)
        edges.insert_events_again({up.pk: (ending.epoch, ending.status)})
        no_errors(race([partial(resolve.resolve_endings, 1)] * 3))
        edges.insert_events_again({up.pk: (ending.epoch, ending.status)})
        resolve_all()
        down.refresh_from_db()
        assert (down.status, down.unresolved_dependencies_count) == ("BLOCKED", 1)
        assert not recount()


def test_endings_that_are_resolved_together_are_all_counted() -> None:
    for policy in ("SKIP", "WAIT"):
        ups = [a_task() for _ in range(5)]
        down = _after(*ups, on_upstream_failure=policy)
        succeed(*ups[:3])
        no_errors(race([partial(resolve.resolve_endings, 9)] * 2))
        assert not recount()
        if policy == "WAIT":
            fail(ups[3])
        resolve_all()
        assert statuses(down) == ["BLOCKED"]
        assert not recount()


@pytest.mark.parametrize(("well", "expected"), [(True, READY), (False, ("SKIPPED",))])
def test_an_edge_that_is_added_while_its_upstream_ends_is_never_lost(
    well: bool, expected: tuple[str, ...]
) -> None:
    for number in range(MANY):
        up, other = begin(a_task()), a_task()
        low, upstream = _after(other) if number % 2 else a_task(), Task.objects.get(pk=up.task_id)
        adds: list[Callable[[], Any]] = [partial(_link, low, upstream), partial(_after, up.task_id)]
        _, _, created, _ = no_errors(
            race([partial(_end, up, well=well), *adds, partial(resolve.resolve_endings, 9)])
        )
        succeed(other)
        resolve_all()
        assert set(statuses(low, created)) <= set(expected)
        assert not recount()


def test_edges_that_together_close_a_cycle_are_not_all_added() -> None:
    for length in (2, 2, 2, 3, 3, 4):
        for _ in range(ROUNDS // 2):
            rows = [a_task() for _ in range(length)]
            answers = no_errors(
                race([partial(_link, row, rows[place - 1]) for place, row in enumerate(rows)])
            )
            assert sorted(map(str, answers)) == sorted(
                map(str, [1] * (length - 1) + [DependencyCycle])
            )
            assert TaskDependency.objects.filter(task__in=rows).count() == length - 1


def test_a_call_by_key_and_an_edge_that_need_the_same_rows_do_not_deadlock() -> None:
    for number in range(MANY):
        up, other = a_task(), a_task()
        noop.using(queue=QUEUE, key=f"k{number}").schedule()
        by_key = partial(_after, up, other, key=f"k{number}")
        no_errors(race([by_key, partial(_link, other, up), partial(_link, a_task(), up, other)]))
        assert not recount()


def test_a_cause_is_replayed_while_its_consequences_are_still_being_resolved() -> None:
    for number in range(ROUNDS):
        rows = [a_task()]
        for _ in range(5):
            rows.append(_after(rows[-1], on_upstream_failure="FAIL" if number % 2 else "SKIP"))
            rows.append(_after(rows[0], rows[-1]))
        fail(rows[0])

        def cascade() -> None:
            for _ in range(8):
                resolve.resolve_endings(2)

        def replay(rows: list[Task] = rows) -> None:
            operator_actions.replay(question(rows[0]), by="bob")

        no_errors(race([cascade, cascade, replay, cascade]))
        resolve_all()
        assert not recount()
        for row in rows:
            assert statuses(row)[0] in READY, statuses(*rows)
            succeed(row)
            resolve_all()
        assert set(statuses(*rows)) == {"SUCCESS"}


def _growing() -> tuple[WorkflowRun, Run]:
    wf = Workflow("growing")
    body = wf.add(noop.using(queue=QUEUE), step="body")
    low = wf.add(noop, after=body, step="low")
    wf.add(noop, after=low, step="lower")
    run = wf.start()
    return run, begin(of(run, "body"))


def _grow(run: Run, *outside: Task) -> bool:
    growth = AddedTasks("growth")
    first = growth.add(noop, step="one", after=list(outside))
    growth.add(noop, step="two", after=first)
    return runs.succeed(run, None, "w", (growth,))


def test_a_workflow_that_grows_while_it_is_cancelled_runs_nothing_afterwards() -> None:
    for number in range(MANY):
        run, body = _growing()
        outside = [a_task()] if number % 2 else []
        cancel = partial(operations.cancel_workflow, run, by="bob")
        results, _, _ = no_errors(
            race([partial(_grow, body, *outside), cancel, partial(resolve.resolve_endings, 9)])
        )
        assert results
        resolve_all()
        left = set(
            Task.objects.filter(workflow=run.pk)
            .exclude(pk=body.task_id)
            .values_list("status", flat=True)
        )
        assert left <= {"CANCELLED", "SKIPPED"}
        run.refresh_from_db()
        assert run.status == "CANCELLED"
        assert not recount()


def test_a_body_that_adds_tasks_may_race_with_locks_on_its_dependents() -> None:
    for _ in range(MANY):
        up = a_task()
        run, body = _growing()
        low = of(run, "low")
        moves: list[Callable[[], Any]] = [
            partial(_grow, body, up),
            partial(_link, low, up),
            partial(edit.place_gate, low.pk, "HOLD", by="bob"),
            partial(
                operator_actions.force_complete,
                Task.objects.filter(pk__in=[up.pk, low.pk]),
                by="bob",
            ),
            partial(
                operator_actions.replay,
                Task.objects.filter(pk__in=[up.pk, body.task_id, low.pk]),
                by="bob",
            ),
        ]
        answers = race(moves)
        assert answers[0] is True, answers
        assert not [answer for answer in answers if "eadlock" in str(answer)], answers
        resolve_all()
        assert not recount()


def test_endings_are_counted_once_by_concurrent_processes() -> None:
    for _ in range(ROUNDS):
        wf = Workflow("counted", on_complete=echo)
        steps = [wf.add(noop, step=f"s{number}") for number in range(8)]
        run = wf.start()
        rows = [of(run, step.name) for step in steps]
        fail(*rows[4:])

        def count() -> None:
            for _ in range(5):
                runs.count_endings(2)

        replay = partial(
            operator_actions.replay,
            Task.objects.filter(pk__in=[row.pk for row in rows[4:6]]),
            by="bob",
        )
        no_errors(
            race(
                [
                    count,
                    count,
                    partial(succeed, *rows[:2]),
                    partial(succeed, *rows[2:4]),
                    replay,
                    count,
                ]
            )
        )
        resolve_all()
        assert not recount()
        succeed(*rows[4:6])
        no_errors(race([count] * 4))
        resolve_all()
        assert not recount()
        run.refresh_from_db()
        assert (run.status, run.failed, run.succeeded) == ("FAILED", 2, 6)
        assert Task.objects.filter(idempotency_key=f"workflow-{run.pk}-on_complete").count() == 1


def test_a_run_is_not_complete_if_an_ending_is_counted_before_an_older_replay() -> None:
    for _ in range(MANY):
        wf = Workflow("early", on_failure=echo)
        wf.add(noop, step="a")
        wf.add(noop, step="b")
        run = wf.start()
        fail(of(run, "a"))
        resolve_all()
        operator_actions.replay(question(of(run, "a")), by="bob")
        succeed(of(run, "a"))
        no_errors(race([partial(runs.count_endings, 1)] * 3))
        resolve_all()
        run.refresh_from_db()
        assert (run.status, run.succeeded, run.failed) == ("RUNNING", 1, 0)
        assert not Task.objects.filter(idempotency_key=f"workflow-{run.pk}-on_failure").exists()
