"""A rolling restart: the example's fifty jobs continue while each of three schedulers and three
workers is replaced.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.billing import rolling_restart

pytestmark = [pytest.mark.postgresql, pytest.mark.timeout(300)]


def test_a_rolling_restart_under_load_misses_and_duplicates_nothing(
    db: None, tmp_path: Path, vendor: str, broker: str
) -> None:
    """Here each node is replaced once, four by SIGTERM and two by SIGKILL. `make kill-test` does it
    ten times each, on every pair.
    """
    found = rolling_restart(
        tmp_path, vendor, broker, ("--rounds", "1", "--customers", "60"), within=240
    )
    assert (found["missing"], found["doubled"], found["problems"], found["left_open"]) == (
        [],
        [],
        [],
        0,
    ), found
    assert found["expected"] == found["seen"] > 100
    assert (found["jobs"], found["nodes"], found["terminated"], found["killed"]) == (50, 6, 4, 2)
