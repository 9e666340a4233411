"""A process that dies or loses a connection at any point of the engine's operations leaves rows
with which others keep the guarantees.

``python -m tests.crash_points --scenario ending`` prints the same as a table, with ``--full`` for
every fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from tests.crash_points.__main__ import NAMES
from tests.crash_points.scenarios import SCENARIOS
from tests.runs import ROOT

Verdicts = list[dict[str, Any]]
KILLS = {("kill", "before"), ("kill", "after")}
ACTIONS = {
    "postgresql": KILLS | {("drop", "before"), ("drop", "after")},
    "mysql": KILLS | {("drop", "after")},
    "sqlite": KILLS,
}


@pytest.fixture(scope="module")
def explored(shared_database: None) -> Iterator[Callable[[str], Verdicts]]:
    """Return a function that explores a scenario in an initialized process, which forks one for
    each fault.
    """
    connection.close()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash_points", "--listen"],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        ask, answers = program.stdin, program.stdout

        def explore(scenario: str) -> Verdicts:
            ask.write(f"{scenario}\n")
            ask.flush()
            answer = answers.readline()
            assert answer, f"the explorer ended with {program.wait(20)}"
            found: Verdicts = json.loads(answer)
            return found

        yield explore
        ask.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", NAMES)
def test_no_fault_at_any_point_violates_a_guarantee(
    db: None, scenario: str, explored: Callable[[str], Verdicts]
) -> None:
    verdicts = explored(scenario)
    broken = [
        (one["variant"], one["number"], one["point"]["place"], one["fault"], one["broken"])
        for one in verdicts
    ]
    assert not [line for line in broken if line[-1]]
    assert {one["variant"] for one in verdicts} == {variant.name for variant in SCENARIOS[scenario]}
    _the_faults_occurred(verdicts)


def _the_faults_occurred(verdicts: Verdicts) -> None:
    """A process that dies before its first durable call leaves nothing, and one that dies after a
    COMMIT leaves its rows.
    """
    fell = {(one["fault"]["action"], one["fault"]["when"]) for one in verdicts}
    assert fell >= ACTIONS[connection.vendor]
    for variant in {one["variant"] for one in verdicts}:
        killed = [
            one
            for one in verdicts
            if one["variant"] == variant and one["fault"]["action"] == "kill"
        ]
        first, last = killed[0], killed[-1]
        assert first["fault"]["when"] == "before"
        assert not first["left"], first
        assert last["left"], last


def test_every_scenario_can_be_selected() -> None:
    assert tuple(SCENARIOS) == NAMES
