"""`python -m tests.chaos`: faults from a seed under load, on PostgreSQL with Redis, with RabbitMQ
and, if PgBouncer is installed, through PgBouncer with Redis; and the result. With `--campaigns` or
`--configuration` instead campaigns whose servers, pools, settings and load are drawn from the seed.

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

from tests.chaos.configuration import VARIABLE, NotAConfiguration, drawn, seeds
from tests.chaos.plan import Plan
from tests.chaos.report import NONE_WANTED, SOME_WANTED, facts, rendered, write
from tests.runs import ROOT
from tests.starting import find_pgbouncer

POOLED = "redis+pgbouncer"
SHARES = {"redis": 0.4, "rabbitmq": 0.2, "database": 0.2, POOLED: 0.2}
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
RATE, RATE_OF_CAMPAIGN = 45.0, 12.0
"""Tasks per second of the load. A campaign has tasks that run for up to 90 s besides."""
OWN = (
    "TEST_RUN",
    "TEST_FOLDER",
    "TEST_DATABASE",
    "TEST_BROKER",
    "TEST_DURABLE_TASKS",
    "DJANGO_SETTINGS_MODULE",
    VARIABLE,
)


class BrokenOff(Exception):
    """A run ended without a result."""


def main(arguments: list[str]) -> int:
    """Run the requested faults, and return the exit code."""
    options = _options(arguments)
    catalogue = _catalogue()
    if options.list:
        for name, one in catalogue:
            _print(f"{one.number:3} {name:22} {', '.join(one.brokers):16} {one.what}")
        return 0
    wanted = _chosen(options.faults, [name for name, _ in catalogue])
    began = time.monotonic()
    sys.stderr.write(f"seed {options.seed}\n")
    is_drawn = options.campaigns > 0 or options.configuration is not None
    if is_drawn:
        plans = list(_campaigns(options, wanted))
    else:
        brokers = [broker for broker in options.broker.split(",") if _can_run(broker)]
        plans = list(_plans(options, wanted, brokers))
    played, broken = list[dict[str, Any]](), list[str]()
    for plan in plans:
        try:
            played.append(run_in_process(plan))
        except BrokenOff as error:  # the others are judged all the same
            broken.append(str(error))
    answer = {
        "seed": options.seed,
        "seconds": time.monotonic() - began,
        "facts": facts(),
        "results": played,
    }
    _print(json.dumps(answer, indent=1) if options.format == "json" else rendered(answer))
    wrong = broken + failures(played, tried=not options.faults and not is_drawn)
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
            rate=options.rate or RATE,
            calm=options.calm,
            pace=options.pace,
            seconds=options.seconds * SHARES[broker] / sum(SHARES[one] for one in brokers),
        )


def _campaigns(options: argparse.Namespace, wanted: set[str]) -> Iterator[Plan]:
    """Yield the plans of the campaigns, and print how each is repeated."""
    for seed in seeds(options.seed, max(1, options.campaigns)):
        try:
            configuration = drawn(seed, options.seconds).but(options.configuration or "")
        except NotAConfiguration as error:
            raise SystemExit(f"--configuration: {error}") from None
        sys.stderr.write(
            f'make chaos ARGS="--seed {seed} --seconds {options.seconds:g}'
            f' --configuration {configuration.in_words()}"\n'
        )
        yield Plan(
            broker=configuration.broker,
            seed=seed,
            faults=tuple(sorted(wanted)) if options.faults else (),
            rate=options.rate or RATE_OF_CAMPAIGN,
            pace=options.pace,
            seconds=options.seconds,
            configuration=configuration,
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
        place = _place(result["seed"], result.get("database", "postgresql"), result["broker"])
        for name, messages in result["violations"].items():
            found += [f"{place}: {name}: {text}" for text in messages["first"]]
        found += [
            f"{place}: {result[name]} {text}" for name, text in NONE_WANTED.items() if result[name]
        ]
    for name, text in SOME_WANTED.items():
        if tried and not any(result[name] for result in results):
            found.append(f"no {text}: the fences were never tried")
    return found


def _place(seed: str, database: str, broker: str) -> str:
    return f"{seed} on {database} and {broker}"


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
        "--rate",
        type=float,
        help=f"tasks a second that the load asks for (default: {RATE:g}, campaigns:"
        f" {RATE_OF_CAMPAIGN:g})",
    )
    parser.add_argument(
        "--campaigns",
        type=int,
        default=0,
        metavar="N",
        help="N campaigns of --seconds each, with configurations drawn from the seed",
    )
    parser.add_argument(
        "--configuration",
        metavar="NAME=VALUE,...",
        help="a campaign with these values, and the others drawn from the seed; may be empty",
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
        is_campaign = plan.configuration is not None
        command = [sys.executable, "-m", "tests.chaos.run_plan", plan.as_text(), str(answer)]
        kept = {name: value for name, value in os.environ.items() if name not in OWN}
        with subprocess.Popen(command, cwd=ROOT, env=kept, stdout=sys.stderr) as result:
            try:
                code = result.wait(
                    plan.seconds + len(plan.faults) * 60 + MARGIN * (1 + is_campaign)
                )
            finally:
                with suppress(ProcessLookupError):
                    result.send_signal(signal.SIGINT)
        if code:
            raise BrokenOff(
                f"The run {_place(plan.seed, plan.database, plan.broker)} broke off with exit code {code}."
            )
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
