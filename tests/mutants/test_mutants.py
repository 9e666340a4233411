"""Each guard that is taken away turns the tests red that watch it."""

import os
import subprocess
import sys

import pytest

from tests.mutants import MUTANTS, VARIABLE
from tests.runs import ROOT

OUTAGES = "processes/test_outages.py"
GRAPHS = "concurrency/test_graph_races.py"
CALLERS = "concurrency/test_callers_transactions.py"
RACES = "concurrency/test_trigger_races.py"
CRASHES = "crash_points/test_crash_points.py::test_no_blow_at_any_point_breaks_a_promise"
WATCH: dict[str, tuple[str, ...]] = {
    "ending": ("processes/test_fences.py",),
    "run_id": ("processes/test_fences.py",),
    "republish": (
        "broker/test_lost_messages.py::test_a_message_that_the_broker_lost_is_rung_again",
    ),
    "heartbeat": (
        "processes/test_outages.py::test_a_run_whose_ending_is_never_taken_leaves_the_heartbeat_and_its_lease_ends_it",
    ),
    "telling": ("processes/test_endings.py::test_ignore_cancels",),
    "grace": (f"{OUTAGES}::test_an_outage_of_the_database_longer_than_the_lease_loses_no_run",),
    "fire": (f"{RACES}::test_leaders_whose_watermarks_are_set_back_under_them_double_nothing",),
    "watermark": (f"{CRASHES}[trigger]",),
    "slot": (
        f"{RACES}::test_of_claims_of_one_slot_at_once_never_two_go_on_and_one_comes_to_its_turn",
    ),
    "pause": (f"{RACES}::test_a_pause_that_comes_while_a_tick_decides_stands",),
    "order": (
        f"{GRAPHS}::test_tellers_of_the_same_dependents_do_not_wait_for_each_other_in_a_circle",
    ),
    "unlocked": (f"{GRAPHS}::test_two_upstreams_that_end_at_the_same_instant_release_once",),
    "flag": (f"{GRAPHS}::test_an_ending_that_is_noted_twice_counts_once",),
    "blind": (f"{GRAPHS}::test_endings_that_are_told_together_count_as_many",),
    "hasty": (f"{CRASHES}[dispatch]",),
    "halves": (f"{CRASHES}[ending]",),
    "followups": (f"{CRASHES}[ending]",),
    "callers": (
        f"{CALLERS}::test_no_open_transaction_of_a_caller_blocks_a_heartbeat_or_an_ending",
    ),
    "marks": (
        f"{CALLERS}::test_a_dependent_is_released_though_its_upstream_ended_inside_the_transaction_that_created_it",
        f"{CALLERS}::test_a_dependent_is_released_when_its_upstream_ends_after_the_transaction",
    ),
}
GREEN, RED = 0, 1


def _verdict(tests: set[str], mutant: str = "") -> tuple[int, str]:
    """Run tests in a process of their own, on a database and queue of their own; return exit code
    and last words.
    """
    kept = {
        name: value for name, value in os.environ.items() if name not in {"TEST_RUN", "TEST_FOLDER"}
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/{test}" for test in tests),
    ]
    kept |= {VARIABLE: mutant, "TEST_PATIENCE": "12" if mutant else "30"}
    answer = subprocess.run(
        command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=280, check=False
    )
    return answer.returncode, answer.stdout[-3000:]


def test_every_mutant_is_watched() -> None:
    assert WATCH.keys() == MUTANTS.keys()


@pytest.mark.parametrize("folder", ["broker", "processes", "concurrency"])
def test_the_watching_tests_are_green_when_nothing_is_taken_away(folder: str) -> None:
    watching = {test for tests in WATCH.values() for test in tests}
    code, words = _verdict({test for test in watching if test.startswith(folder)})
    assert code == GREEN, words


@pytest.mark.parametrize("mutant", WATCH)
def test_a_guard_that_is_taken_away_is_missed(mutant: str) -> None:
    code, words = _verdict(set(WATCH[mutant]), mutant)
    assert code == RED, words
    assert "failed" in words
    assert "error" not in words.splitlines()[-1]
