"""The report of a run, between two markers of a documentation page. The figures are stored as JSON
beside the page.

`python -m tests.chaos.report` writes the page again from the stored figures.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.chaos.verdict import INVARIANTS, meaning
from tests.runs import ROOT

PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
RUN = "No run has been published yet."
BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"
NONE_WANTED = {
    "lost": "tasks lost",
    "accepted_twice": "accepted twice",
    "ghost_runs": "ghost runs",
    "effects_twice": "atomic effects twice",
    "fires_missing": "fires missing",
    "fires_doubled": "fires doubled",
}
SOME_WANTED = {"fenced_endings": "endings fenced", "ignored_messages": "messages ignored"}
OTHERS = {
    "tasks": "tasks",
    "queues": "queues in which tasks succeeded",
    "runs": "runs",
    "faults": "faults",
    "kills": "processes killed",
    "replies_lost": "replies of the database lost",
    "commits_cut": "of these, replies to COMMIT",
    "pooled_transactions": "transactions through PgBouncer",
    "garbage": "unreadable values written into the due index in Redis",
    "garbage_removed": "unreadable entries that schedulers removed",
    "attempts_lost": "attempts lost and retried by another process",
    "executed_more_than_once": "tasks whose function started again after a lost attempt",
    "overlapping_runs": "of these, while the first run continued",
    "retried": "failed attempts that were retried",
    "dead_letters": "dead letters",
    "callbacks": "HTTP callbacks",
    "notifications": "messages of notifications",
    "requests_refused": "requests that the receiver refused or did not answer",
    "requests_repeated": "requests that it had accepted before",
    "batched": "tasks that ran in batches",
    "counted_again": "created tasks that only the second count of their minute found",
    "refused_calls": "calls that failed while the database was unavailable",
    "terms": "leader terms",
    "fires": "fire times",
    "fires_of_past_terms": "of these, written by a former leader",
}


def facts() -> dict[str, str]:
    """Return when and on which machine the run was made."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("django", "celery", "kombu", "psycopg")
    )
    return {
        "taken": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": (
            f"{platform.system()} {platform.machine()}, {cores} cores, {_memory()} of memory"
        ),
        "versions": f"Python {platform.python_version()}, {versions}",
    }


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def rendered(answer: Mapping[str, Any]) -> str:
    """Return the figures of a run in Markdown."""
    results: Sequence[Mapping[str, Any]] = answer["results"]
    where = answer["facts"]
    servers = dict.fromkeys(version for result in results for version in result["servers"])
    how = (
        f"Taken {where['taken']} on {where['machine']}: load, fleet, servers and checker included. "
        f"Seed `{answer['seed']}`, {answer['seconds']:.0f} seconds. {where['versions']}"
        f"{''.join(f', {version}' for version in servers)}."
    )
    drawn = [text for result in results if (text := result.get("configuration"))]
    how += "".join(f"\n* `{text}`" for text in drawn)
    tables = (_counts(results), _times(results), _invariants(results), _faults(results))
    return "\n\n".join([how, *map("\n".join, tables)])


def write(page: Path, answer: Mapping[str, Any]) -> None:
    """Store the figures beside a page and write the report between its markers. Raises ValueError
    if it has no markers.
    """
    _put(page, rendered(answer))
    _kept(page).write_text(json.dumps(answer, indent=1) + "\n")


def taken(page: Path) -> dict[str, Any] | None:
    """Return the figures stored beside a page, or None before the first run."""
    if not _kept(page).exists():
        return None
    found: dict[str, Any] = json.loads(_kept(page).read_text())
    return found


def section(page: Path) -> str:
    """Return the text between the markers of a page."""
    return page.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def _put(page: Path, report: str) -> None:
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the report: {BEGIN} and {END}.")
    page.write_text(f"{before}{BEGIN}\n\n{report}\n\n{END}{after}")


def _kept(page: Path) -> Path:
    return page.with_name("chaos.json")


def main() -> int:
    """Write the documentation page again."""
    answer = taken(PAGE)
    _put(PAGE, RUN if answer is None else rendered(answer))
    return 0


def _counts(results: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = ["figure", *(f"{_database(result)} × {_name(result)}" for result in results), "wanted"]
    lines = _head(heads)
    for names, wanted in ((OTHERS, ""), (NONE_WANTED, "0"), (SOME_WANTED, "> 0")):
        lines += [
            _row([text, *(_number(result, name) for result in results), wanted])
            for name, text in names.items()
            if any(name in result for result in results)
        ]
    return lines


def _times(results: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: list[tuple[str, list[str]]] = [
        (
            f"successes a second, {when}",
            [str(result["throughput"].get(when, "")) for result in results],
        )
        for when in ("before", "during", "after")
    ]
    rows.append(
        ("longest time without a start (s)", [str(result["longest_gap"]) for result in results])
    )
    rows.append(
        (
            "longest time without a fire (s)",
            [str(result["longest_gap_of_fires"]) for result in results],
        )
    )
    rows.append(
        ("longest recovery after a fault (s)", [str(_longest(result)) for result in results])
    )
    for name, text in (
        ("fire_lag_ms", "a fire's start is late by (ms)"),
        ("enqueue_ms", "a call takes (ms)"),
    ):
        cells = [
            " / ".join(str(result[name].get(share, "")) for share in ("p50", "p99", "max"))
            for result in results
        ]
        rows.append((f"{text}, p50 / p99 / largest", cells))
    return _head(["time", *map(_name, results)]) + [_row([text, *cells]) for text, cells in rows]


def _invariants(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = _head(["", "invariant", *(f"violations, {_name(result)}" for result in results)])
    for name in INVARIANTS:
        lines.append(_row([name, meaning(name), *(_violated(result, name) for result in results)]))
    return lines


def _faults(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = _head(
        ["broker", "fault", "seconds", "recovered after (s)", "successes a second meanwhile"]
    )
    for result in results:
        for window in result["windows"]:
            if window["number"]:
                cells = [str(window[key]) for key in ("seconds", "recovery", "rate")]
                lines.append(_row([_name(result), window["what"], *cells]))
    return lines


def _number(result: Mapping[str, Any], name: str) -> str:
    """Return a figure; nothing for one that was not counted when the run was recorded."""
    return f"{result[name]:,}" if name in result else ""


def _violated(result: Mapping[str, Any], name: str) -> str:
    """Return the number of violations; nothing for an invariant that was added after the run."""
    found = result["violations"].get(name)
    return "" if found is None else str(found["number"])


def _longest(result: Mapping[str, Any]) -> float:
    return max((window["recovery"] for window in result["windows"]), default=0.0)


def _name(result: Mapping[str, Any]) -> str:
    names = {
        "redis": "Redis",
        "rabbitmq": "RabbitMQ",
        "filesystem": "files",
        "database": "database",
    }
    name = names[result["broker"]]
    return f"{name}, PgBouncer" if result.get("pooled") else name


def _database(result: Mapping[str, Any]) -> str:
    """Return the name of the database; runs that were recorded without one used PostgreSQL."""
    names = {"postgresql": "PostgreSQL", "mariadb": "MariaDB", "sqlite": "SQLite"}
    return names[result.get("database", "postgresql")]


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|" + "---|" * len(cells)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
