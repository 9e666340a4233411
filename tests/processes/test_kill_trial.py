"""The kill trial of `make kill-test`, short: few tasks, few kills, shortened leases."""

from tests.kill_trials.figures import Plan
from tests.kill_trials.trial import run
from tests.processes.fleet import Fleet


def test_a_drain_survives_the_kills_of_its_only_worker(fleet: Fleet) -> None:
    figures = run(fleet, Plan(tasks=160, kills=3, freezes=1, patience=40))
    assert (figures.succeeded, figures.lost, figures.left_running, figures.accepted_twice) == (
        160,
        0,
        0,
        0,
    ), figures
    assert figures.fenced_endings > 0
    assert figures.attempts_lost > 0
