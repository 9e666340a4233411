"""`python -m tests.chaos`: faults from a seed under load, on PostgreSQL with Redis, with RabbitMQ
and, if PgBouncer is installed, through PgBouncer with Redis; and the result.

Everything runs on private servers, which are started and stopped. The exit code is 1 if an
invariant was violated, or if no ending was fenced and no message dropped, because then the fences
were not tested.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import django

from tests.chaos.plan import Plan
from tests.chaos.report import NONE_WANTED, SOME_WANTED, facts, rendered, write
from tests.runs import ROOT
from tests.starting import find_pgbouncer

POOLED = "redis+pgbouncer"
SHARES = {"redis": 0.5, "rabbitmq": 0.3, POOLED: 0.2}
AGAIN = {
    "worker-killed",
    "worker-frozen",
    "leader-killed",
    "commits-cut",
    "broker-flushed",
    "broker-frozen",
    "broker-alarm",
    "broker-cut",
    "everything-doubled",
    "reordered",
    "garbage",
    "everything",
}
"""Faults that are repeated on the second broker: those that concern brokers."""
THROUGH_POOLER = {
    "worker-killed",
    "worker-frozen",
    "leader-frozen",
    "sessions-ended",
    "commits-cut",
    "database-unheard",
    "database-restarted",
    "serializable",
    "everything-doubled",
    "everything",
}
"""Faults that are repeated through PgBouncer: those that concern connections to the database."""
MARGIN = 900
OWN = (
    "TEST_RUN",
    "TEST_FOLDER",
    "TEST_DATABASE",
    "TEST_BROKER",
    "TEST_DURABLE_TASKS",
    "DJANGO_SETTINGS_MODULE",
)


def main(arguments: list[str]) -> int:
    """Run the requested faults, and return the exit code."""
    options = _options(arguments)
    catalogue = _catalogue()
    if options.list:
        for name, one in catalogue:
            _print(f"{one.number:3} {name:22} {', '.join(one.brokers):16} {one.what}")
        return 0
    wanted = _chosen(options.faults, [name for name, _ in catalogue])
    brokers = [broker for broker in options.broker.split(",") if _can_run(broker)]
    began = time.monotonic()
    sys.stderr.write(f"seed {options.seed}\n")
    played = [run_in_process(plan) for plan in _plans(options, wanted, brokers)]
    answer = {
        "seed": options.seed,
        "seconds": time.monotonic() - began,
        "facts": facts(),
        "results": played,
    }
    _print(json.dumps(answer, indent=1) if options.format == "json" else rendered(answer))
    wrong = failures(played, tried=not options.faults)
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    if options.report and not wrong:
        write(options.report, answer)
    return 1 if wrong else 0


def _plans(options: argparse.Namespace, wanted: set[str], brokers: list[str]) -> Iterator[Plan]:
    """Yield the plan of each broker. Without chosen faults the first run has all of its broker, the
    others those that are repeated.
    """
    for broker in brokers:
        server, _, pooler = broker.partition("+")
        again = THROUGH_POOLER if pooler else AGAIN
        sought = wanted if options.faults or broker == brokers[0] else wanted & again
        yield Plan(
            broker=server,
            pooled=bool(pooler),
            seed=options.seed,
            faults=tuple(
                name for name, one in _catalogue() if name in sought and server in one.brokers
            ),
            rate=options.rate,
            calm=options.calm,
            pace=options.pace,
            seconds=options.seconds * SHARES[broker] / sum(SHARES[one] for one in brokers),
        )


def _can_run(broker: str) -> bool:
    """Return whether the servers of this run are installed."""
    if broker not in SHARES:
        raise SystemExit(f"There is no {broker!r}; --broker takes {', '.join(SHARES)}.")
    if broker == POOLED and find_pgbouncer() is None:
        sys.stderr.write("SKIPPED: PgBouncer is not installed.\n")
        return False
    return True


def failures(results: list[dict[str, Any]], *, tried: bool = True) -> list[str]:
    """Return what is wrong with these runs, as sentences. ``tried``: something must have been
    fenced.
    """
    found = []
    for result in results:
        for name, messages in result["violations"].items():
            found += [f"{result['broker']}: {name}: {text}" for text in messages["first"]]
        found += [
            f"{result['broker']}: {result[name]} {text}"
            for name, text in NONE_WANTED.items()
            if result[name]
        ]
    for name, text in SOME_WANTED.items():
        if tried and not any(result[name] for result in results):
            found.append(f"no {text}: the fences were never tried")
    return found


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seed", default=secrets.token_hex(4), help="repeat the faults and the load of a run"
    )
    parser.add_argument(
        "--faults",
        default="",
        metavar="NAMES",
        help="only these faults, by comma; --list names them",
    )
    parser.add_argument(
        "--broker",
        default=",".join(SHARES),
        help="the brokers, separated by commas; +pgbouncer: through PgBouncer (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=600,
        help="minimum duration in seconds; each fault occurs in any case",
    )
    parser.add_argument(
        "--rate", type=float, default=45, help="tasks a second that the load asks for"
    )
    parser.add_argument(
        "--calm", type=float, default=15, help="undisturbed seconds before and after the faults"
    )
    parser.add_argument("--pace", type=float, default=1, help="stretches or shortens each fault")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="PAGE",
        help="write the figures between the marks of this page",
    )
    parser.add_argument("--list", action="store_true", help="name the faults, and do nothing")
    return parser.parse_args(arguments)


def _catalogue() -> list[tuple[str, Any]]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from tests.chaos.faults.catalogue import FAULTS

    return sorted(FAULTS.items(), key=lambda item: item[1].number)


def _chosen(names: str, known: list[str]) -> set[str]:
    chosen = {name for name in names.split(",") if name}
    if strange := chosen - set(known):
        raise SystemExit(f"There is no fault {', '.join(sorted(strange))}; --list names them.")
    return chosen or set(known)


def run_in_process(plan: Plan) -> dict[str, Any]:
    """Run a plan in a separate process, in a process group of its own."""
    with tempfile.TemporaryDirectory(prefix="durable-chaos-answer-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "tests.chaos.run_plan", plan.as_text(), str(answer)]
        kept = {name: value for name, value in os.environ.items() if name not in OWN}
        with subprocess.Popen(command, cwd=ROOT, env=kept, stdout=sys.stderr) as result:
            try:
                code = result.wait(plan.seconds + len(plan.faults) * 60 + MARGIN)
            finally:
                with suppress(ProcessLookupError):
                    result.send_signal(signal.SIGINT)
        if code:
            raise SystemExit(f"The run on {plan.broker} broke off with exit code {code}.")
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
