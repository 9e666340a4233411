"""``make bench``: its parts, what it leaves out, and the file that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench
from benchmarks.contest import OURS, Figure
from benchmarks.environments import known, pythons_of
from benchmarks.servers import Servers
from benchmarks.stage import Stage

SERVERS = Servers("postgresql://x/y", "redis://x/14", "amqp://x//", "abc")
PYTHONS = dict.fromkeys(known(), "python")
LONGEST = 22 * 60


@pytest.mark.parametrize("part", bench.PARTS, ids=lambda part: part.name)
@pytest.mark.parametrize("quick", [False, True])
def test_each_part_measures_this_package(part: bench.Part, quick: bool) -> None:
    n = part.quick_n if quick else part.n
    contenders = part.contenders(Stage(SERVERS, ("redis", "rabbitmq"), n, PYTHONS))
    assert OURS in {one.peer for one in contenders}
    left_out = [text for text in part.without for one in contenders if text in one.what.split()]
    assert not left_out


def test_each_peer_is_measured_in_each_part_in_which_it_has_a_meaning() -> None:
    """Beat has no single calls and runs nothing; the others run and enqueue tasks."""
    stage = Stage(SERVERS, ("redis", "rabbitmq"), 100, PYTHONS)
    peers = {part.name: {one.peer for one in part.contenders(stage)} for part in bench.PARTS}
    queues = set(known()) - {"django-celery-beat"}
    assert peers["enqueue"] - {OURS} == queues
    assert peers["run"] - {OURS} == queues
    assert "django-celery-beat" in peers["recurring"]


def test_the_parts_are_expected_to_take_at_most_22_minutes(tmp_path: Path) -> None:
    none = tmp_path / "none.json"
    whole = sum(bench.expected(part, quick=False, before=none) for part in bench.PARTS)
    assert whole <= LONGEST


def test_the_durations_of_the_last_run_are_expected_again(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"seconds": {"run": 77.5}}), encoding="utf-8")
    by_name = {part.name: bench.expected(part, quick=False, before=path) for part in bench.PARTS}
    assert by_name["run"] == 77.5
    assert by_name["lag"] > 0


def test_the_list_names_each_part_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(part.name in shown for part in bench.PARTS)


def test_an_unknown_part_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--only", "run,walk"])
    assert "'walk'; it has: enqueue, run" in capsys.readouterr().err


def test_a_peer_without_an_interpreter_is_named_with_the_reason() -> None:
    found, missing = pythons_of(["oban"], "/nowhere/python")
    assert found == {}
    assert "3.12" in missing["oban"]


def test_a_report_is_written_as_json_with_its_figures_and_what_is_missing(tmp_path: Path) -> None:
    report = bench.Report("2026-11-25T10:00:00+00:00", True, {"cores": 2}, [0.1], {"oban": "why"})
    figure = Figure("run", "no-op", OURS, None, "redis", 100, 2.0, 50.0, 1.0, [50.0], {"mb": 80.0})
    report.add(bench.PARTS[1], 12.34, [figure])
    report.write(tmp_path / "results" / "bench.json")
    found = json.loads((tmp_path / "results" / "bench.json").read_text(encoding="utf-8"))
    assert (found["seconds"], found["missing"]) == ({"run": 12.3}, {"oban": "why"})
    assert (found["figures"][0]["per_second"], found["figures"][0]["facts"]) == (50.0, {"mb": 80.0})
