"""The progress lines of a test run: finished runs, starting runs, and the estimated remaining time."""

import pytest

from tests.progress import Progress, about, seconds_left
from tests.runs import Run

CHECK = Run("ruff check", "checks", ("ruff",))
BROWSER = Run("pytest tests/browser on sqlite", "browser", (), ("tests/browser",), "sqlite")


@pytest.mark.parametrize(
    ("under_way", "waiting", "parallel", "left"),
    [
        ([], [], 2, 0),
        ([100], [], 2, 100),
        ([100], [30, 30], 2, 100),
        ([100], [30, 30, 60], 2, 120),
        ([], [300, 200, 100], 1, 600),
        ([], [300, 200, 100], 2, 300),
    ],
)
def test_the_remaining_time_is_that_of_the_longest_sequence(
    under_way: list[float], waiting: list[float], parallel: int, left: float
) -> None:
    assert seconds_left(under_way, waiting, parallel) == left


@pytest.mark.parametrize(
    ("seconds", "said"), [(5, "5 s"), (59, "59 s"), (60, "1 min"), (170, "3 min")]
)
def test_durations_are_printed_in_minutes(seconds: float, said: str) -> None:
    assert about(seconds) == said


def test_a_run_is_announced_with_its_duration_and_the_number_of_finished_runs() -> None:
    progress = Progress([BROWSER, CHECK], 1)
    total = about(BROWSER.seconds + CHECK.seconds)
    line = progress.begins(BROWSER)
    assert (
        line == f"{BROWSER.title} (expected {about(BROWSER.seconds)}); 0 of 2 runs are over, about"
        f" {total} left"
    )
    progress.ends(BROWSER)
    assert progress.state() == f"1 of 2 runs are over, about {about(CHECK.seconds)} left"
    progress.ends(CHECK)
    assert progress.state() == "2 of 2 runs are over", "one of them did not begin, for want of time"
