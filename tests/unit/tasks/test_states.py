"""The table of states is complete: every status can be reached and, unless it is final, left."""

from __future__ import annotations

from django_durable_tasks.celery.live_runs import followups_of
from django_durable_tasks.choices import OPEN, REPLAYABLE, TERMINAL, Status
from django_durable_tasks.states.machine import TRANSITIONS
from django_durable_tasks.tasks.options import Schedule

MOVES = TRANSITIONS.values()


def test_every_status_is_reached_by_some_transition() -> None:
    assert set().union(*(move.targets for move in MOVES)) == set(Status)


def test_every_open_status_can_be_left_and_cancelled() -> None:
    assert TRANSITIONS["cancel"].sources == OPEN
    for status in OPEN:
        assert any(status in move.sources and move.targets - {status} for move in MOVES)


def test_an_ended_task_is_changed_by_operators_only() -> None:
    by_people = {"replay", "rerun", "force_complete", "force_run"}
    assert {move.name for move in MOVES if move.sources & TERMINAL} == by_people


def test_success_is_final_except_for_a_backfill_that_reprocesses_all() -> None:
    assert [move.name for move in MOVES if Status.SUCCESS in move.sources] == ["rerun"]
    assert TERMINAL - {Status.SUCCESS} == REPLAYABLE


def test_a_body_returns_follow_ups_alone_or_in_a_list() -> None:
    one = Schedule("job", (1,))
    assert followups_of(one) == (one,)
    assert followups_of([one, one]) == (one, one)
    assert [followups_of(value) for value in ([], None, [one, 1], "job", {"a": one})] == [()] * 5
