"""The recount of created tasks and fire times detects each count that is lost or doubled, also one
that a later count of the minute has repaired.
"""

import dataclasses

import pytest

from tests.chaos.figures import figures
from tests.chaos.records import CreationCounts, Fire, History
from tests.chaos.verdict import violations
from tests.unit.chaos.histories import COUNTED, CREATIONS, GOOD, but, counting

CREATED = ("CREATED", "default", "selected", "")
FIRED = ("OCCURRENCE", "", "", "DISPATCHED")
MISSED = ("OCCURRENCE", "", "", "MISSED")


def _with_first_count(number: int, *, at: float = 66.0) -> CreationCounts:
    """Return the counts with another first one of the queue and name of CREATED."""
    return dataclasses.replace(
        CREATIONS,
        counts=tuple(
            dataclasses.replace(one, number=number, at=at) if one.name == CREATED[2] else one
            for one in CREATIONS.counts
        ),
    )


@pytest.mark.parametrize("series", [CREATED, FIRED])
@pytest.mark.parametrize("number", [0, 2])
def test_one_count_that_is_lost_or_doubled_is_found(
    series: tuple[str, str, str, str], number: int
) -> None:
    found = violations(counting({series: (number, number)}))
    assert found.pop("H15") == [f"{' '.join(series)}: {number} were counted of 1"]
    assert not any(found.values())


@pytest.mark.parametrize("series", [CREATED, FIRED])
def test_a_count_that_only_the_minutes_miss_is_found(series: tuple[str, str, str, str]) -> None:
    found = violations(counting({series: (1, 0)}))
    assert found["H15"] == [f"{' '.join(series)}: its minutes have 0 of 1"]


def test_each_fire_time_of_a_range_is_counted() -> None:
    fires = (*GOOD.fires, Fire("table", 200.0, None, 2, 200.1, "MISSED", 3))
    assert violations(but(fires=fires, counted={**COUNTED, MISSED: (3, 3)}))["H15"] == []
    found = violations(but(fires=fires, counted={**COUNTED, MISSED: (1, 1)}))
    assert found["H15"] == [f"{' '.join(MISSED)}: 1 were counted of 3"]


@pytest.mark.parametrize(
    "creations",
    [_with_first_count(0), _with_first_count(1, at=400.0), _with_first_count(1, at=130.0)],
    ids=["it is smaller", "it was the second one", "it was that of the suite"],
)
def test_a_first_count_without_a_started_task_is_found(creations: CreationCounts) -> None:
    found = violations(but(creations=creations))
    assert found["H15"] == [
        "CREATED default selected: the first count of minute 0 has 0 tasks, and 1 had started"
    ]


def _started_late() -> History:
    changes = (
        dataclasses.replace(one, at=65.1) if one.task == "child" and one.attempt else one
        for one in GOOD.changes
    )
    return but(changes=tuple(changes), creations=_with_first_count(0))


def _before_the_first_count() -> History:
    return but(creations=dataclasses.replace(_with_first_count(0), until=0.0))


@pytest.mark.parametrize("history", [_started_late(), _before_the_first_count()])
def test_a_task_that_may_have_been_committed_later_may_be_counted_later(history: History) -> None:
    assert violations(history)["H15"] == []


def test_tasks_that_were_counted_later_are_a_figure() -> None:
    assert figures(GOOD, (), [], {}, 0)["counted_again"] == 0
    assert figures(_started_late(), (), [], {}, 0)["counted_again"] == 1
    assert figures(_before_the_first_count(), (), [], {}, 0)["counted_again"] == 0
