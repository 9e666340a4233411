"""The protocol holds in every order of events, and each removed guard is detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from django_durable_tasks.states.machine import TRANSITIONS
from tests.repetitions import drawn, repeats_less
from tests.unit.protocol.cases import CAUGHT, COVERED, PROTOCOL
from tests.unit.protocol.model import table, verdict_of
from tests.unit.protocol.states import ABSENT, Case

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "protocol_model.md"
# The graph, the operator's edit of waiting tasks, and the replay of a success, which is the same
# write as `replay`.
NOT_MODELLED = {"release", "block", "fail", "force_run", "edit", "skip", "rerun"}

# The worlds of batches, operators and outages together contain every transition.
ALWAYS = PROTOCOL[1:4]
DRAWN = drawn([case for case in PROTOCOL if case not in ALWAYS], 3)
PROTOCOL_OF_THE_DAY = [case for case in PROTOCOL if case in (*ALWAYS, *DRAWN)]
CAUGHT_OF_THE_DAY = drawn(CAUGHT)
COVERED_OF_THE_DAY = drawn(COVERED)


def _name(case: object) -> str:
    return case.name if isinstance(case, Case) else ""


def _transition(step: str) -> str:
    bare = step.removeprefix("reply of ").removesuffix(" is lost")
    return bare.partition(" (")[0].replace(" ", "_")


@pytest.mark.parametrize("case", PROTOCOL_OF_THE_DAY, ids=_name)
def test_the_protocol_reaches_no_violation_and_no_dead_end(case: Case) -> None:
    verdict = verdict_of(case)
    assert not verdict.violation, verdict.trace


@pytest.mark.parametrize("case", CAUGHT_OF_THE_DAY, ids=_name)
def test_a_mutant_makes_its_tests_fail(case: Case) -> None:
    assert verdict_of(case).violation == CAUGHT[case]


@pytest.mark.parametrize("case", COVERED_OF_THE_DAY, ids=_name)
def test_a_guard_that_another_one_covers_is_listed_as_covered(case: Case) -> None:
    verdict = verdict_of(case)
    assert not verdict.violation, verdict.trace


def test_every_status_change_in_the_model_is_a_transition_of_the_table() -> None:
    moves = {
        move
        for case in PROTOCOL_OF_THE_DAY
        for move in verdict_of(case).moves
        if move[0] != "fail-over forgets a commit"
    }
    strange = [
        (step, source, target)
        for step, source, target in moves
        if source != target and not _in_table(_transition(step), source, target)
    ]
    assert not strange


def _in_table(name: str, source: str, target: str) -> bool:
    move = TRANSITIONS.get(name)
    return (
        move is not None and target in move.targets and (source in move.sources or source == ABSENT)
    )


def test_every_transition_of_the_table_occurs_in_the_model() -> None:
    walked = {
        _transition(step) for case in PROTOCOL_OF_THE_DAY for step, _, _ in verdict_of(case).moves
    }
    assert not TRANSITIONS.keys() - NOT_MODELLED - walked


def test_the_documentation_shows_the_printed_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    printed = table(PROTOCOL_OF_THE_DAY, CAUGHT_OF_THE_DAY, COVERED_OF_THE_DAY)
    assert set(printed.splitlines()) <= set(page.splitlines())
    assert repeats_less() or printed in page
