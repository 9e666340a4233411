"""``durable health``: whether a node should be restarted, for liveness probes."""

from __future__ import annotations

import platform
from argparse import ArgumentParser

from django.db import Error

from django_durable_tasks.engine.cluster.health import NodeHealth, vitals
from django_durable_tasks.engine.db.connections import TimeLimits, dedicated_connection
from django_durable_tasks.management.durable.output import Output, table
from django_durable_tasks.management.durable.subcommand import OK, UNHEALTHY, Options, Subcommand
from django_durable_tasks.models import Node

_TIMEOUTS = TimeLimits(statement=2.0, lock=1.0, idle=2.0)
_SHOWN = ("name", "kind", "host", "pid", "state", "fault")


def _arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--node", metavar="NAME", help="the node of this name, as `status` and the admin show it"
    )
    which.add_argument("--here", action="store_true", help="every node of this host (the default)")


def run(options: Options, out: Output) -> int:
    """Check the node with this name, or all nodes of this host; the newest row of each name counts.
    An unavailable database is not a reason to restart a process that waits for it.
    """
    name = options["node"]
    wanted = {"name": name} if name else {"host": platform.node()}
    try:
        with dedicated_connection(_TIMEOUTS):
            found = vitals(Node.objects.filter(**wanted))
    except Error as error:
        out.note(f"The database is not available, so the state of the nodes is unknown: {error}")
        out.emit({"healthy": None, "nodes": []}, "unknown")
        return OK
    alive = bool(found) and not any(one.fault for one in found)
    rows = [_row(one) for one in found]
    place = f"no node is named {name}" if name else f"no node runs on {platform.node()}"
    verdict = "healthy" if alive else "UNHEALTHY"
    out.emit({"healthy": alive, "nodes": rows}, f"{verdict}\n{table(_SHOWN, rows, place)}")
    return OK if alive else UNHEALTHY


def _row(one: NodeHealth) -> dict[str, object]:
    node = one.node
    return {
        "name": node.name,
        "kind": node.kind,
        "host": node.host,
        "pid": node.pid,
        "state": one.state,
        "fault": one.fault,
        "last_seen_at": node.last_seen_at,
        "last_scan_at": node.last_scan_at,
        "last_start_at": node.last_start_at,
    }


HEALTH = Subcommand(
    name="health",
    summary=(
        "check for a liveness probe that the nodes of this host are alive and work; exit with 1 if"
        " one must be restarted"
    ),
    examples=("health", "health --here --format json", "health --node scheduler-a"),
    arguments=_arguments,
    run=run,
)
