"""Write the figures of the README and of the page about benchmarks from recorded JSON files:
``python -m docs.figures``. A test fails if they differ.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs import bench

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
BENCHMARKS = ROOT / "benchmarks" / "recorded.json"
EXPLANATION = ROOT / "docs" / "explanation"

Record = Mapping[str, Any]


def figures() -> str:
    """Return the block of figures in Markdown."""
    recorded = _read(BENCHMARKS)
    parts = [
        *bench.summary(bench.recorded()),
        _claim(recorded["claim"]),
        _prune(recorded["prune"]),
        *_failover(_read(EXPLANATION / "failover.json")),
        _chaos(_read(EXPLANATION / "chaos.json")),
    ]
    return "\n\n".join(parts)


def updated(page: str) -> str:
    """Return a page with the figures between its marks; raises ValueError if a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page needs the marks {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n{figures()}\n{END}{after}"


def _claim(found: Record) -> str:
    parts = " and ".join(
        f"{row['ms']} ms beside {row['finished']:,} finished and {row['future']:,} future tasks"
        for row in found["rows"]
    )
    return _prose(
        f"A scheduler reads the state of its queues and claims 100 due tasks in {parts}."
        f" {found['about']}"
    )


def _prune(found: Record) -> str:
    return _prose(
        f"While {found['prunable']:,} ended tasks are pruned, tasks that are due at"
        f" {found['due_per_second']} per second start {found['p50_ms']} ms (p50) and"
        f" {found['p99_ms']} ms (p99) late; without pruning in the same run"
        f" {found['p50_ms_without']} and {found['p99_ms_without']} ms. {found['about']}"
    )


def _failover(trials: Iterable[Record]) -> list[str]:
    rows = [
        [
            f"{trial['database']} × {trial['broker']}, {trial['date'][:10]}",
            *(_times(trial[name]) for name in ("leader_killed", "leader_left", "worker_killed")),
            f"{trial['fires']:,}: {trial['missing']} missing, {trial['doubled']} doubled",
        ]
        for trial in trials
    ]
    loads = ", ".join(str(trial["load_average"]) for trial in trials)
    return [
        _prose(
            "Fail-over with default settings, in seconds: the longest time without a fire after the"
            " leader was killed or stopped by SIGTERM, and the time until a task of a killed worker"
            " started again. A schedule fires every 0.25 s. Two virtual cores, load average (15 min)"
            f" {loads}."
        ),
        bench.table(
            ["pair", "leader killed", "leader stopped", "worker killed", "fire times"],
            rows,
        ),
    ]


def _times(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.1f}, max {max(seconds):.1f} ({len(seconds)} times)"


def _chaos(found: Record) -> str:
    results = found["results"]
    count = {
        name: sum(result[name] for result in results) for name in ("tasks", "faults", *_WANTED)
    }
    kinds = {window["name"] for result in results for window in result["windows"]} - {
        "before",
        "after",
    }
    return _prose(
        f"{found['seconds'] / 60:.0f} minutes of chaos on private servers, {count['tasks']:,} tasks"
        f" during {count['faults']} faults of {len(kinds)} kinds: {count['lost']} lost,"
        f" {count['accepted_twice']} accepted twice, {count['fires_missing']} fires missing,"
        f" {count['fires_doubled']} doubled"
        " ([report](docs/explanation/guarantees.md#chaos-test)). Counts of killed workers:"
        " [kill trials](docs/explanation/kill_trials.md)."
    )


_WANTED = ("lost", "accepted_twice", "fires_missing", "fires_doubled")


def _prose(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    """Update the README, the page about benchmarks and its charts."""
    bench.write()
    README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
