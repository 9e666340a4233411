"""Each removed guard makes the tests fail that cover it."""

import os
import re
import subprocess
import sys

import pytest

from tests.mutants import MUTANTS, VARIABLE
from tests.runs import ROOT

OUTAGES = "processes/test_outages.py"
GRAPHS = "concurrency/test_workflow_races.py"
CALLERS = "concurrency/test_callers_transactions.py"
RACES = "concurrency/test_trigger_races.py"
BATCHES = "concurrency/test_batch_guards.py"
CRASHES = "crash_points/test_crash_points.py::test_no_fault_at_any_point_violates_a_guarantee"
WATCH: dict[str, tuple[str, ...]] = {
    "ending": ("processes/test_fences.py",),
    "run_id": ("processes/test_fences.py",),
    "position": (
        "processes/test_fences.py::test_a_position_is_accepted_only_from_the_run_that_owns_the_task",
    ),
    "republish": (
        "broker/test_lost_messages.py::test_a_message_lost_by_the_broker_is_republished",
    ),
    "heartbeat": (
        "processes/test_outages.py::test_a_run_whose_ending_is_never_accepted_leaves_the_heartbeat_and_its_lease_ends_it",
    ),
    "recording": ("processes/test_endings.py::test_ignore_cancels",),
    "grace": (f"{OUTAGES}::test_an_outage_of_the_database_longer_than_the_lease_loses_no_run",),
    "fire": (
        f"{RACES}::test_leaders_whose_watermarks_are_set_back_concurrently_duplicate_nothing",
    ),
    "watermark": (f"{CRASHES}[trigger]",),
    "slot": (f"{RACES}::test_concurrent_claims_with_one_overlap_key_take_one_task_each_time",),
    "pause": (f"{RACES}::test_a_pause_during_a_tick_is_kept",),
    "order": (f"{GRAPHS}::test_processes_that_resolve_the_same_dependents_do_not_deadlock",),
    "unlocked": (f"{GRAPHS}::test_two_upstreams_that_end_at_the_same_instant_release_once",),
    "flag": (f"{GRAPHS}::test_a_duplicate_ending_event_counts_once",),
    "blind": (f"{GRAPHS}::test_endings_that_are_resolved_together_are_all_counted",),
    "hasty": (f"{CRASHES}[dispatch]",),
    "halves": (f"{CRASHES}[ending]",),
    "followups": (f"{CRASHES}[ending]",),
    "counts": (
        "concurrency/test_metric_races.py::test_a_minute_that_another_leader_has_settled_is_not_written_again",
    ),
    "batch_crashes": (f"{CRASHES}[batch]",),
    "hand_over": (f"{CRASHES}[hand over]",),
    "batch_return": (
        f"{BATCHES}::test_a_task_that_another_process_has_started_again_is_not_returned",
    ),
    "batch_epoch": (
        f"{BATCHES}::test_a_success_is_refused_if_one_of_epoch_and_run_id_differs[epoch]",
    ),
    "batch_run_id": (
        f"{BATCHES}::test_a_success_is_refused_if_one_of_epoch_and_run_id_differs[run_id]",
    ),
    "batch_take": (
        f"{BATCHES}::test_a_task_that_runs_alone_after_a_crash_is_not_taken_into_a_batch",
    ),
    "batch_limited": (
        f"{BATCHES}::test_a_task_that_changes_between_the_read_and_the_lock_of_a_limited_batch_is_not_taken[_lose]",
    ),
    "batch_claim": (f"{BATCHES}::test_a_claim_by_id_leaves_a_task_that_runs_in_batches",),
    "batch_message": (
        f"{BATCHES}::test_processes_that_reserve_a_batch_message_at_once_publish_one",
    ),
    "callers": (
        f"{CALLERS}::test_no_open_transaction_of_a_caller_blocks_a_heartbeat_or_an_ending",
    ),
    "marks": (
        f"{CALLERS}::test_a_dependent_is_released_although_its_upstream_ended_during_the_transaction_that_created_it",
        f"{CALLERS}::test_a_dependent_is_released_when_its_upstream_ends_after_the_transaction",
    ),
}
GREEN, RED = 0, 1
STALE = re.compile(r"^.*\b(?:TypeError|AttributeError|NameError|ImportError)\b.*$", re.MULTILINE)
"""What a mutant causes whose replacement does not fit the function any more. Any test would fail with
it.
"""


def _verdict(tests: set[str], mutant: str = "") -> tuple[int, str]:
    """Run tests in a separate process, with a separate database and queue. Returns exit code and
    output.
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
    return answer.returncode, answer.stdout


def test_every_mutant_is_covered() -> None:
    assert WATCH.keys() == MUTANTS.keys()


@pytest.mark.parametrize("folder", ["broker", "processes", "concurrency"])
def test_the_covering_tests_pass_without_a_mutant(folder: str) -> None:
    watching = {test for tests in WATCH.values() for test in tests}
    code, words = _verdict({test for test in watching if test.startswith(folder)})
    assert code == GREEN, words[-3000:]


@pytest.mark.parametrize("mutant", WATCH)
def test_a_mutant_makes_its_tests_fail(mutant: str) -> None:
    code, words = _verdict(set(WATCH[mutant]), mutant)
    assert code == RED, words[-3000:]
    assert "failed" in words
    assert not STALE.findall(words), words[-3000:]
    assert "error" not in words.splitlines()[-1]
