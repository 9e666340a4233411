"""The page of kill trials shows the recorded figures."""

from tests.kill_trials.figures import BATCHES
from tests.kill_trials.ledger import entries
from tests.kill_trials.report import PAGE, page


def test_the_page_is_generated_from_the_recorded_figures() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(entries()), "python -m tests.kill_trials.report"


def test_no_trial_lost_duplicated_or_forgot_a_task() -> None:
    for trial in entries():
        assert (trial["lost"], trial["left_running"], trial["accepted_twice"]) == (0, 0, 0), trial
        assert trial["succeeded"] == trial["tasks"], trial
        assert trial["fenced_endings"] > 0, trial
        assert (trial["in_batches"] > trial["tasks"] / 2) == (trial["lane"] == BATCHES), trial
    assert sum(trial["dropped_rings"] for trial in entries()) > 0
