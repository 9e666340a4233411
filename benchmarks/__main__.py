"""Command line of the benchmarks: measures this package and comparable ones on this machine in one
run.

All contenders are measured once per round. Each figure is the median of the rounds. Progress is
printed to stderr, figures to stdout. A run uses its own databases, queues and Redis database and
removes them at the end.
"""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks.contenders import BareCelery, Ours
from benchmarks.contest import hold
from benchmarks.environments import known, pythons_of
from benchmarks.machine import machine
from benchmarks.processes import Failed
from benchmarks.programme import DEFAULT_N, PROGRAMMES
from benchmarks.report import as_json, as_table
from benchmarks.servers import BROKERS, NotMeasurable, Servers, default_url, servers_for_a_run
from benchmarks.stage import Stage

EXAMPLES = """
examples:
  python -m benchmarks enqueue                                 .delay() and bulk, beside every peer, as a table
  python -m benchmarks run --peers celery --brokers rabbitmq   no-ops per second, beside bare Celery on RabbitMQ
  python -m benchmarks durations --peers celery                tasks of 0, 0.1 and 1 s with a backlog, beside Celery
  python -m benchmarks dispatch --peers none --rounds 1        due rows that one scheduler publishes a second
  python -m benchmarks recurring --peers django-celery-beat    rows due every 10 s, beside beat; what a tick costs
  python -m benchmarks recurring --new 100000 --rounds 1       100,000 schedules that are created and due at once
  python -m benchmarks recurring --period 300 -n 500000        500,000 schedules every 5 minutes, for 5 minutes
  python -m benchmarks graph --large --rounds 1                whole graphs, beside Celery's chord, group and chain
  python -m benchmarks lag --peers celery,oban                 how late one-off tasks start, at 100 to 1,000/s
  python -m benchmarks lag --peers none --prunable 300000      the same while 300,000 ended tasks are pruned
  python -m benchmarks lanes --peers none                      each mechanism for speed, with and without it
  python -m benchmarks neighbour --peers none                  how late a tenant's tasks start beside another's
  python -m benchmarks coroutines --peers none                 1,000 async functions at once in one process
  python -m benchmarks limit --peers none                      short tasks per second with max_concurrency=4
  python -m benchmarks claim -n 10000000                       a claim beside 10 M finished and 1 M future rows
  python -m benchmarks messages --peers none                   the broker in the database: queues, dead rows, commits
  python -m benchmarks large -n 10000000                       claim, start and end beside 10 M and 10 M rows
  python -m benchmarks queues --peers none                     one poll with rows due in 1,000 queues
  python -m benchmarks queues --peers none --large --rounds 1  the same, and 10,000 queues, tenants and 100,000 keys
  python -m benchmarks api --peers none -n 10000000            requests to the HTTP API beside 10 M tasks
  python -m benchmarks admin -n 100000                         pages of the admin beside 100,000 tasks
  python -m benchmarks failover --peers none                   seconds without a fire after the leader was killed
  python -m benchmarks callbacks --brokers redis -n 500        HTTP callbacks to a server that takes 50 ms
  python -m benchmarks run --profile --brokers redis           where a worker's time goes, by cProfile
  python -m benchmarks all --format json > figures.jsonl       everything, one object a line

what each figure means: benchmarks/README.md
"""


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = ", ".join(f"{name} {number:,}" for name, number in DEFAULT_N.items())
    parser.add_argument("name", choices=[*PROGRAMMES, "all"], help="what to measure")
    parser.add_argument(
        "--format", choices=["table", "json"], default="table", help="json: one object per line"
    )
    parser.add_argument(
        "--peers",
        default="all",
        metavar="NAMES",
        help=f"all, none, or some of {','.join(known())} (default: all)",
    )
    parser.add_argument(
        "--brokers", default=",".join(BROKERS), metavar="NAMES", help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=_number, default=3, help="default: %(default)s")
    parser.add_argument(
        "-n", type=_number, metavar="N", help=f"number per round (default: {sizes})"
    )
    _add_ways(parser)
    options = parser.parse_args(arguments)
    options.peers = _names(parser, "--peers", options.peers, list(known()))
    options.brokers = _names(parser, "--brokers", options.brokers, list(BROKERS))
    if not options.brokers:
        parser.error("--brokers names none")
    return options


def _add_ways(parser: argparse.ArgumentParser) -> None:
    """Add the options for sizes, profiles, interpreters and servers."""
    parser.add_argument(
        "--large",
        action="store_true",
        help="graph: a layered graph of 10 x N too; queues: 10 x N queues and tenants too",
    )
    parser.add_argument(
        "--prunable",
        type=_number,
        default=0,
        metavar="N",
        help="lag: ours once more while N ended tasks are pruned",
    )
    parser.add_argument(
        "--new",
        type=_number,
        default=0,
        metavar="N",
        help="recurring: instead, N schedules that are due at once beside 1,000 every 10 s",
    )
    parser.add_argument(
        "--period",
        type=_number,
        default=0,
        metavar="SECONDS",
        help="recurring: instead, a whole period in which each of -n schedules fires once",
    )
    parser.add_argument(
        "--profile", action="store_true", help="profile ours instead, on each of the brokers"
    )
    parser.add_argument(
        "--python", metavar="PATH", help="the interpreter for the peers' environments"
    )
    for server in ("postgresql", "redis", "rabbitmq"):
        parser.add_argument(
            f"--{server}", default=default_url(server), metavar="URL", help="default: %(default)s"
        )


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _names(
    parser: argparse.ArgumentParser, option: str, given: str, there: list[str]
) -> tuple[str, ...]:
    if given in ("all", "none"):
        return tuple(there) if given == "all" else ()
    names = tuple(given.split(","))
    for name in names:
        if name not in there:
            parser.error(f"{option} has no {name!r}; it has: {', '.join(there)}")
    return names


def _pythons(peers: tuple[str, ...], wished: str | None) -> dict[str, str]:
    found, missing = pythons_of(peers, wished)
    for error in missing.values():
        print(f"SKIPPED: {error}", file=sys.stderr)
    return found


def _profile(servers: Servers, names: list[str], options: argparse.Namespace) -> None:
    n = options.n or 1_000
    if "graph" in names:
        raise NotMeasurable("graph has no profile: profile run, whose tasks use the same code")
    for name in [
        command
        for named in names
        for command in ((named, "bulk") if named == "enqueue" else (named,))
    ]:
        for broker in options.brokers:
            ours = Ours(servers, broker)
            print(f"\n# {name} on postgresql + {broker}\n{ours.profile(name, n)}", flush=True)
            if name == "run":
                seconds = ours.run(n, 1, published=False)
                print(
                    f"== worker with two children and one scheduler: {n / seconds:,.0f}/s;"
                    " processor time per task:"
                )
                print(ours.accounts.text, flush=True)
                for python in _pythons(("celery",), options.python).values():
                    bare = BareCelery(servers, broker, python)
                    print(f"== bare Celery: {n / bare.run(n, 1):,.0f}/s; processor time per task:")
                    print(bare.accounts.text, flush=True)


def main(arguments: list[str]) -> int:
    """Measure, print, clean up; return the exit code."""
    options = _options(arguments)
    names = list(PROGRAMMES) if options.name == "all" else [options.name]
    try:
        with servers_for_a_run(options.postgresql, options.redis, options.rabbitmq) as servers:
            if options.profile:
                _profile(servers, names, options)
                return 0
            pythons, about, complete = (
                _pythons(options.peers, options.python),
                machine(servers),
                True,
            )
            for name in names:
                stage = Stage(
                    servers,
                    options.brokers,
                    options.n or DEFAULT_N[name],
                    pythons,
                    options.large,
                    options.prunable,
                    options.new,
                    options.period,
                )
                contenders = PROGRAMMES[name](stage)
                figures = hold(contenders, options.rounds)
                complete &= all(len(contender.ended) == options.rounds for contender in contenders)
                print(
                    (as_json if options.format == "json" else as_table)(figures, about), flush=True
                )
    except (NotMeasurable, Failed) as error:
        print(f"Cannot measure: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if complete else 1


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # so that it cleans up as after Ctrl-C
    sys.exit(main(sys.argv[1:]))
