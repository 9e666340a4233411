"""The matcher of process tests detects a missing and a duplicate run, and does not confuse
different runs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.processes.windows import Seen, Window, matched, noted, windows

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
LATENESS = timedelta(seconds=3)


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def _every(seconds: int, number: int, name: str = "job") -> list[Window]:
    return windows(name, [_at(seconds * k) for k in range(number)], LATENESS)


def _seen(*seconds: float, name: str = "job") -> list[Seen]:
    return [Seen(name, _at(second)) for second in seconds]


def test_one_run_in_each_window_matches_completely() -> None:
    found = matched(_every(5, 3), _seen(10.2, 0.1, 6))
    assert (found.missing, found.surplus, found.lags()) == ((), (), [0.1, 0.2, 1.0])


def test_a_missing_run_is_detected() -> None:
    found = matched(_every(5, 3), _seen(0.1, 10.2))
    assert found.missing == (Window("job", _at(5), _at(8)),)
    assert not found.surplus


def test_a_duplicate_run_is_detected() -> None:
    found = matched(_every(5, 3), _seen(0.1, 5.1, 5.2, 10.2))
    assert found.surplus == tuple(_seen(5.2))
    assert not found.missing


def test_a_duplicate_run_does_not_replace_a_missing_one() -> None:
    found = matched(_every(5, 3), _seen(0.1, 0.2, 10.2))
    assert (len(found.missing), found.surplus) == (1, tuple(_seen(0.2)))


def test_a_run_before_or_after_its_window_does_not_match() -> None:
    found = matched(_every(5, 2), _seen(3.5, 4.9))
    assert (len(found.missing), len(found.surplus)) == (2, 2)


def test_the_ends_of_a_window_are_inclusive() -> None:
    assert not matched(_every(5, 2), _seen(0, 8)).missing


def test_a_run_of_another_name_does_not_match() -> None:
    found = matched(_every(5, 1), _seen(0.1, name="other"))
    assert (len(found.missing), found.surplus) == (1, tuple(_seen(0.1, name="other")))


def test_late_runs_of_overlapping_windows_are_matched() -> None:
    assert not matched(_every(1, 4), _seen(3, 3, 3, 3.5)).missing


def test_records_of_bodies_are_read_back(tmp_path: Path) -> None:
    notebook = tmp_path / "notes"
    assert noted(notebook) == []
    notebook.write_text("a b 2026-03-02T09:00:00+00:00\nc 2026-03-02T09:00:01.5+00:00\n")
    assert noted(notebook) == [Seen("a b", _at(0)), Seen("c", _at(1.5))]


def _largest(targets: list[Window], runs: list[Seen]) -> int:
    """Return the size of the largest matching, by augmenting paths."""
    taken: dict[int, int] = {}

    def place(run: int, tried: set[int]) -> bool:
        for number, window in enumerate(targets):
            if number not in tried and window.opens <= runs[run].at <= window.closes:
                tried.add(number)
                if number not in taken or place(taken[number], tried):
                    taken[number] = run
                    return True
        return False

    return sum(place(run, set()) for run in range(len(runs)))


_SECONDS = st.integers(0, 20)


@given(st.lists(st.tuples(_SECONDS, st.integers(0, 8)), max_size=8), st.lists(_SECONDS, max_size=8))
def test_no_matching_is_larger(spans: list[tuple[int, int]], starts: list[int]) -> None:
    targets = [Window("job", _at(opens), _at(opens + length)) for opens, length in spans]
    runs = _seen(*starts)
    found = matched(targets, runs)
    assert len(found.pairs) == _largest(targets, runs)
    assert len(found.pairs) + len(found.missing) == len(targets)
    assert len(found.pairs) + len(found.surplus) == len(runs)
    assert all(window.opens <= run.at <= window.closes for window, run in found.pairs)
