"""``limit list``, ``limit set`` and ``limit remove``: how much may be under way, and how often it may start."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser

from django_durable_tasks.celery import wiring
from django_durable_tasks.lifecycle import limit_orders
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.verb import (
    OK,
    REFUSED,
    Options,
    Verb,
    add_by_and_reason,
    by_and_reason,
    refuse,
)

_COLUMNS = ("scope", "source", "max_concurrency", "taken", "rate", "tokens", "parked")


def limit(options: Options, out: Output) -> int:
    """List the limits, set one, or remove one."""
    wiring.load_tasks()
    return {"list": _list, "set": _set, "remove": _remove}[options["action"]](options, out)


def _list(options: Options, out: Output) -> int:
    rows = [dataclasses.asdict(standing) for standing in limit_orders.standings()]
    out.emit(rows, table(_COLUMNS, rows, "nothing is limited"))
    return OK


def _set(options: Options, out: Output) -> int:
    scope = _scope(options)
    limit_orders.set_limit(
        scope, max_concurrency=options["max_concurrency"], rate=options["rate"], burst=options["burst"],
        **by_and_reason(options),
    )  # fmt: skip
    told = {name: options[name] for name in ("max_concurrency", "rate", "burst", "reason")}
    out.emit({"verb": "limit", "scope": scope, **told}, f"{scope} is limited, within a second everywhere")
    return OK


def _remove(options: Options, out: Output) -> int:
    scope = _scope(options)
    removed = limit_orders.remove_limit(scope)
    text = f"{scope} is what code and settings say again" if removed else f"no operator limited {scope}"
    out.emit({"verb": "limit", "scope": scope, "removed": removed}, text)
    return OK if removed else REFUSED


def _scope(options: Options) -> str:
    scope: str | None = options["scope"]
    if scope is None:
        refuse("Name the scope: global, queue:<name>, task:<name>, tenant:<id> or key:<text>.")
    return scope


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "set", "remove"), help="what to do")
    parser.add_argument("scope", metavar="SCOPE", nargs="?", help="global, queue:NAME, task:NAME, tenant:ID, key:TEXT")
    parser.add_argument("--max-concurrency", metavar="N", type=int, help="of set: so many published or running at once")
    parser.add_argument("--rate", metavar="N/UNIT", help="of set: so many starts a second, minute, hour or day: 10/m")
    parser.add_argument("--burst", metavar="N", type=float, help="of --rate: so many at once after a pause")
    add_by_and_reason(parser, "of set: why; the admin shows it")


LIMIT = Verb(
    name="limit",
    help="list the limits, set one over what code and settings say, or remove it",
    examples=(
        "limit list",
        "limit set queue:mail --max-concurrency 5 --rate 100/m --reason 'the provider asked for it'",
        "limit set task:shop.tasks.charge --max-concurrency 0",
        "limit remove queue:mail",
    ),
    arguments=_arguments,
    run=limit,
)
