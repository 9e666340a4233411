"""Measures this package and its peers in one run of about twenty minutes: ``make bench``.

Each part is a benchmark of ``python -m benchmarks`` with a small size. The figures are written as
one JSON file, from which ``python -m docs.figures`` writes the tables and charts of the
documentation. Peers that could not be measured are named in the output and in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.contest import Contender, Figure, hold
from benchmarks.environments import known, pythons_of
from benchmarks.machine import machine
from benchmarks.processes import ROOT, Failed
from benchmarks.programme import PROGRAMMES
from benchmarks.report import as_table
from benchmarks.servers import BROKERS, NotMeasurable, default_url, servers_for_a_run
from benchmarks.stage import Stage

RESULTS = ROOT / "benchmarks" / "results"
FULL, QUICK = RESULTS / "bench.json", ROOT / ".benchmarks" / "quick.json"


@dataclass(frozen=True)
class Part:
    """One benchmark of the run: its size, rounds and expected duration in seconds, the contenders
    that are left out to keep the run short (words of their ``what``), and its peers.
    """

    name: str
    about: str
    n: int
    quick_n: int
    rounds: int
    seconds: int
    without: tuple[str, ...] = ()
    peers: tuple[str, ...] | None = None

    def contenders(self, stage: Stage) -> list[Contender]:
        """Return the contenders of this part."""
        found = PROGRAMMES[self.name](stage)
        return [one for one in found if not any(contains(one.what, text) for text in self.without)]


def contains(what: str, words: str) -> bool:
    """Return whether these words occur: "concurrency 1" does not occur in "concurrency 100"."""
    return re.search(rf"{re.escape(words)}(?!\w)", what) is not None


PARTS = (
    Part("enqueue", "enqueue: single, in a transaction, bulk", 500, 100, 3, 60),
    Part(
        "run",
        "run no-ops, with the memory of the processes",
        2_000,
        200,
        2,
        120,
        ("QUEUED first", "prefetch 4", "concurrency 1"),
    ),
    Part(
        "durations",
        "tasks of 0, 0.1 and 1 s with a backlog of 3,000",
        3_000,
        60,
        1,
        480,
        peers=("celery",),
    ),
    Part("dispatch", "publish due tasks", 10_000, 500, 2, 20),
    Part(
        "recurring",
        "schedules that are due every 10 s",
        50_000,
        500,
        1,
        120,
        ("10,000 rows every", "100 rows every", "of 100,000", "of 1,000,000", "due of 10"),
    ),
    Part(
        "lag",
        "start lag at 100 to 1,000 a second",
        500,
        200,
        1,
        220,
        peers=("celery", "pgqueuer"),
    ),
    Part("limit", "short tasks with max_concurrency=4", 200, 20, 1, 20),
    Part("graph", "fan-in and fan-out", 10_000, 50, 1, 120, ("chain", "validate")),
    Part("queues", "one poll with due tasks in many queues", 1_000, 50, 1, 25, ("tenants: 20",)),
    Part("claim", "a claim beside a large table", 1_000_000, 20_000, 1, 25),
    Part("failover", "the leader is killed", 1, 1, 3, 40),
    Part("api", "requests to the HTTP API", 100_000, 1_000, 1, 25),
    Part("admin", "pages of the admin", 100_000, 1_000, 1, 30),
)


@dataclass
class Report:
    """What a run measured, as it is stored."""

    taken: str
    quick: bool
    machine: dict[str, str | int]
    load: list[float]
    missing: dict[str, str]
    failed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, part: Part, seconds: float, figures: Sequence[Figure]) -> None:
        """Add the figures of a part."""
        self.seconds[part.name] = round(seconds, 1)
        self.figures += [asdict(figure) for figure in figures]

    def write(self, path: Path) -> None:
        """Write the JSON file, replacing an existing one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def expected(part: Part, *, quick: bool, before: Path = FULL) -> float:
    """Return the expected seconds of a part: those of the last full run, if one is recorded."""
    if quick:
        return 30.0
    if before.exists():
        found = json.loads(before.read_text(encoding="utf-8"))["seconds"].get(part.name)
        if found is not None:
            return float(found)
    return float(part.seconds)


def listed(parts: Sequence[Part], *, quick: bool) -> str:
    """Return the parts with their expected durations."""
    lines = [f"{part.name:10} {expected(part, quick=quick):5.0f} s  {part.about}" for part in parts]
    total = sum(expected(part, quick=quick) for part in parts)
    return "\n".join(
        [*lines, f"{'all':10} {total:5.0f} s  without building the peers' environments"]
    )


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("--list", action="store_true", help="print the parts and end")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {','.join(names)}")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round of small sizes, to try the program: the figures mean nothing and are not"
        f" written to {FULL.relative_to(ROOT)}",
    )
    parser.add_argument("--peers", default="all", metavar="NAMES", help="all, none or names")
    parser.add_argument("--python", metavar="PATH", help="the interpreter for the peers")
    for server in ("postgresql", "redis", "rabbitmq"):
        parser.add_argument(
            f"--{server}", default=default_url(server), metavar="URL", help="default: %(default)s"
        )
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else names
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"--only has no {unknown[0]!r}; it has: {', '.join(names)}")
    options.parts = [part for part in PARTS if part.name in wanted]
    peers = {"all": list(known()), "none": []}.get(options.peers, options.peers.split(","))
    if unknown := [name for name in peers if name not in known()]:
        parser.error(f"--peers has no {unknown[0]!r}; it has: {', '.join(known())}")
    options.peers = tuple(peers)
    return options


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure(options: argparse.Namespace) -> Report:
    with servers_for_a_run(options.postgresql, options.redis, options.rabbitmq) as servers:
        pythons, missing = pythons_of(options.peers, options.python)
        report = Report(
            datetime.now(UTC).isoformat(timespec="seconds"),
            options.quick,
            machine(servers),
            [round(load, 2) for load in os.getloadavg()],
            missing,
        )
        for number, part in enumerate(options.parts, 1):
            left = sum(expected(one, quick=options.quick) for one in options.parts[number - 1 :])
            _say(
                f"--- part {number} of {len(options.parts)}, {part.about}: about"
                f" {expected(part, quick=options.quick):.0f} s, all {left / 60:.0f} min"
            )
            peers = {
                name: path
                for name, path in pythons.items()
                if part.peers is None or name in part.peers
            }
            n = part.quick_n if options.quick else part.n
            contenders = part.contenders(Stage(servers, BROKERS, n, peers))
            began, rounds = time.monotonic(), 1 if options.quick else part.rounds
            found = hold(contenders, rounds)
            report.add(part, time.monotonic() - began, found)
            report.failed += [one.title for one in contenders if len(one.ended) < rounds]
            if found:
                print(as_table(found, {}), flush=True)
    return report


def main(arguments: list[str]) -> int:
    """Measure and write the file; return 0, 1 if something could not be measured, or 2 if a server
    is missing.
    """
    options = _options(arguments)
    if options.list:
        print(listed(options.parts, quick=options.quick))
        return 0
    whole = not options.quick and len(options.parts) == len(PARTS)
    try:
        report = _measure(options)
    except (NotMeasurable, Failed) as error:
        _say(f"Cannot measure: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    path = FULL if whole else QUICK
    report.write(path)
    for name, reason in report.missing.items():
        _say(f"NOT MEASURED: {name}: {reason}")
    for title in report.failed:
        _say(f"FAILED in at least one round: {title}")
    _say(f"{sum(report.seconds.values()) / 60:.1f} min; the figures are in {path}")
    if whole:
        _say("python -m docs.figures writes them into the README and the documentation")
    return 1 if report.missing or report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
