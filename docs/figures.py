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
        *_throughput(recorded["throughput"]),
        *_recurring(recorded["recurring"]),
        _claim(recorded["claim"]),
        _queues(recorded["queues"]),
        *_lag(recorded["lag"]),
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


def _throughput(found: Record) -> list[str]:
    rows = [
        [row["what"], *_rates(row["per_second"], row.get("concurrency"))] for row in found["rows"]
    ]
    return [
        _prose(
            f"{found['about']} Compare within a row, not with other pages. Bare Celery stores nothing"
            " in a database and loses the messages of a killed worker or a flushed broker."
        ),
        _table(["per second", *found["columns"]], rows),
    ]


def _rates(rates: Sequence[int | None], concurrency: Sequence[int | None] | None) -> list[str]:
    at_once = concurrency or [None] * len(rates)
    return [
        "" if rate is None else f"{rate:,}{f' (concurrency {number})' if number else ''}"
        for rate, number in zip(rates, at_once, strict=True)
    ]


def _recurring(found: Record) -> list[str]:
    rows = []
    for row in found["rows"]:
        lag = f"; p50 {row['p50_ms']} ms, p99 {row['p99_ms']} ms late" if "p50_ms" in row else ""
        rows.append(
            [
                f"{row['schedules']:,} schedules, {row['due_per_second']:,} due per second",
                f"{row['per_second']:,}{lag}",
                f"{row['beat_per_second']:,}",
            ]
        )
    ticks = ", ".join(f"{ms} ms among {number:,}" for number, ms in found["tick_ms"])
    return [
        _prose(found["about"]),
        _table(["tasks per second", "this package", "django-celery-beat 2.9"], rows),
        _prose(
            "This package has then also written a ledger entry and a task for each. A tick with 100"
            f" due schedules takes {ticks} schedules."
        ),
    ]


def _claim(found: Record) -> str:
    parts = " and ".join(
        f"{row['ms']} ms beside {row['finished']:,} finished and {row['future']:,} future tasks"
        for row in found["rows"]
    )
    return _prose(
        f"A scheduler reads the state of its queues and claims 100 due tasks in {parts}."
        f" {found['about']}"
    )


def _queues(found: Record) -> str:
    parts = " and ".join(
        f"{row['p50_ms']} ms (at most {row['max_ms']} ms) with {row['tenants']}"
        f" tenant{'s' if row['tenants'] > 1 else ''} (goal: {row['goal_ms']} ms)"
        for row in found["rows"]
    )
    return _prose(
        f"One poll of a scheduler that claims and publishes {found['due_per_queue']} due tasks in each"
        f" of {found['queues']:,} queues takes {parts}. {found['about']}"
    )


def _lag(found: Record) -> list[str]:
    rows = [
        [str(row["due_per_second"]), *(f"{p50:,} and {p99:,}" for p50, p99 in row["p50_p99_ms"])]
        for row in found["rows"]
    ]
    parts = dict(found["processor_ms_per_task"])
    whole = parts.pop("all")
    shares = ", ".join(f"{name} {value}" for name, value in parts.items())
    others = ", ".join(f"{p50} and {p99} at {due}" for due, p50, p99 in found["another_day"])
    return [
        _prose(
            "How late tasks start that were scheduled seconds before: milliseconds from the due time"
            f" to the first line of the task function, p50 and p99. No task was early. {found['about']}"
        ),
        _table(["due per second", *found["columns"]], rows),
        _prose(
            f"At 500 per second this package needs more than the two cores of the machine ({whole} ms"
            f" of processor time per task: {shares}), so the lag grows during the run. On another day"
            f" the same kind of machine had {others} per second."
        ),
    ]


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
        _table(
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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in ([*head], *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


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
