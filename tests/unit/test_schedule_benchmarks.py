"""The benchmarks of many schedules: whose a message is, how late it was, and what is measured."""

from __future__ import annotations

import uuid

import pytest

from benchmarks.arrivals import Arrivals
from benchmarks.ours import FIRST_NEW
from benchmarks.recurring import recurring
from benchmarks.schedules import Arrival, _arrived, _quantiles
from benchmarks.servers import Servers
from benchmarks.stage import Stage

SERVERS = Servers("postgresql://x/y", "redis://x/14", "amqp://x//", "abc")
_FIRE = "1970-01-01T00:00:10Z"


def _schedule(number: int) -> str:
    return str(uuid.UUID(int=(7 << 76) + number))


def test_a_message_is_of_an_existing_schedule_or_a_new_one_or_a_one_off_task() -> None:
    arrivals = Arrivals([11.0, 12.5], [1, 3])
    task = str(uuid.uuid4())
    keys = [f"{_schedule(1)}/{_FIRE}", f"{_schedule(FIRST_NEW)}/{_FIRE}", task]
    assert list(_arrived(arrivals, keys, {task: 12.0})) == [
        Arrival(11.0, 10.0, "existing"),
        Arrival(12.5, 10.0, "new"),
        Arrival(12.5, 12.0, "one_off"),
    ]


def test_quantiles_of_lags_are_in_milliseconds() -> None:
    found = _quantiles([0.001 * number for number in range(1, 200)], "lag_")
    assert found == {"lag_p50_ms": 100.0, "lag_p99_ms": 198.0, "lag_max_ms": 199.0}


@pytest.mark.parametrize(
    ("new", "period", "names"),
    [
        (100_000, 0, ["100,000 new schedules due at once"]),
        (0, 300, ["500,000 rows every 300 s"]),
        (5, 60, ["5 new schedules due at once", "500,000 rows every 60 s"]),
    ],
)
def test_many_schedules_are_measured_instead_of_the_others(
    new: int, period: int, names: list[str]
) -> None:
    stage = Stage(SERVERS, ("redis",), 500_000, {}, new_schedules=new, period=period)
    assert [contender.what for contender in recurring(stage)] == names
