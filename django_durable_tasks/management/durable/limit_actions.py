"""``limit list``, ``limit set`` and ``limit remove``."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser

from django_durable_tasks.celery import inspect
from django_durable_tasks.engine.limits import operator_limits
from django_durable_tasks.management.durable.operation_arguments import add_operations, values
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.subcommand import (
    OK,
    REFUSED,
    Options,
    Subcommand,
    by_and_reason,
    refuse,
)
from django_durable_tasks.operations import limits

_COLUMNS = ("scope", "source", "max_concurrency", "taken", "rate", "tokens", "waiting")


def limit(options: Options, out: Output) -> int:
    """List the limits, set one, or remove one."""
    inspect.load_tasks()
    return {"list": _list, "set": _set, "remove": _remove}[options["action"]](options, out)


def _list(options: Options, out: Output) -> int:
    rows = [dataclasses.asdict(standing) for standing in operator_limits.limit_usages()]
    out.emit(rows, table(_COLUMNS, rows, "nothing is limited"))
    return OK


def _set(options: Options, out: Output) -> int:
    scope, fields = _scope(options), values(options, limits.SET)
    outcome = limits.SET.perform(scope, **by_and_reason(options), **fields)
    shown = {"command": "limit", "scope": scope, **fields, "reason": options["reason"]}
    out.emit(shown, outcome.message)
    return OK


def _remove(options: Options, out: Output) -> int:
    scope = _scope(options)
    outcome = limits.REMOVE.perform(scope, **by_and_reason(options))
    removed = bool(outcome.changed)
    out.emit({"command": "limit", "scope": scope, "removed": removed}, outcome.message)
    return OK if removed else REFUSED


def _scope(options: Options) -> str:
    scope: str | None = options["scope"]
    if scope is None:
        refuse("Name the scope: global, queue:<name>, task:<name>, tenant:<id> or key:<text>.")
    return scope


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "set", "remove"), help="What to do.")
    parser.add_argument(
        "scope",
        metavar="SCOPE",
        nargs="?",
        help="global, queue:NAME, task:NAME, tenant:ID or key:TEXT.",
    )
    add_operations(parser, *limits.OPERATIONS)


LIMIT = Subcommand(
    name="limit",
    summary="or list the limits",
    operations=limits.OPERATIONS,
    examples=(
        "limit list",
        (
            "limit set queue:mail --max-concurrency 5 --rate 100/m --reason 'the provider asked"
            " for it'"
        ),
        "limit set task:shop.tasks.charge --max-concurrency 0",
        "limit remove queue:mail",
    ),
    arguments=_arguments,
    run=limit,
)
