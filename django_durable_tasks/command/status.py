"""``durable status`` and ``durable health``, with exit codes for monitoring."""

from __future__ import annotations

import dataclasses
import platform
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.db import Error

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.cluster.queues import MISROUTED_FOR, Depth, shown_count, totals
from django_durable_tasks.cluster.status import (
    PER_SCHEDULER,
    NodeHealth,
    Overview,
    overview,
    vitals,
)
from django_durable_tasks.command.subcommand import (
    OK,
    UNHEALTHY,
    Options,
    Output,
    Subcommand,
    cell,
    table,
)
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.limits.operator_limits import limit_waits
from django_durable_tasks.limits.scopes import waiting
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.store.connections import TimeLimits, dedicated_connection
from django_durable_tasks.tasks.explanations import ago
from django_durable_tasks.tasks.options import TaskOptions

# ``durable health``: whether a node should be restarted, for liveness probes.


_TIMEOUTS = TimeLimits(statement=2.0, lock=1.0, idle=2.0)
_SHOWN = ("name", "kind", "host", "pid", "state", "fault")


def _health_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--node", metavar="NAME", help="the node of this name, as `status` and the admin show it"
    )
    which.add_argument("--here", action="store_true", help="every node of this host (the default)")


def health(options: Options, out: Output) -> int:
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
    arguments=_health_arguments,
    run=health,
)


_QUEUE = (
    "queue",
    "pending",
    "due",
    "limited",
    "queued",
    "unanswered",
    "running",
    "late",
    "oldest_due",
    "workers",
    "concurrency",
    "paused_by",
    "rejected",
    "misrouted",
)
_NODE = (
    "name",
    "kind",
    "host",
    "pid",
    "pool",
    "concurrency",
    "running",
    "queues",
    "skew",
    "last_seen_at",
    "state",
)
_STATES = (
    "region",
    "shards",
    "versions",
    "active",
    "last_scan_at",
    "last_start_at",
    "draining",
    "index_state",
    "wakeups_state",
    "failing",
)
_PACKAGE = "django_durable_tasks."
_REACH = ("name", "index_state", "wakeups_state")
_ALERT = ("kind", "subject", "detail", "since")


def problems(seen: Overview) -> list[str]:
    """Return a text for each threshold that is exceeded. Each of them makes the command exit with
    1.
    """
    return faults(seen) + alarms(seen)


def faults(seen: Overview) -> list[str]:
    """Return what is wrong with the processes and their configuration: what a deploy can cause."""
    found = []
    if not seen.alive(NodeKind.SCHEDULER):
        found.append("No scheduler is alive: run `manage.py run_scheduler`.")
    if not seen.is_led:
        found.append(
            "No scheduler leads: silent runs are not handed on, and lost messages are not"
            " republished."
        )
    for node in seen.nodes:
        found += node_problems(node, seen)
    return found + [
        f"Queue {depth.queue}: the broker rejects its messages ({depth.rejected});"
        f" {waiting(depth.pending + depth.queued)}."
        for depth in seen.depths
        if depth.rejected
    ]


def alarms(seen: Overview) -> list[str]:
    """Return what is wrong with tasks and with the database's clock."""
    settings, found = conf.settings(), []
    if (noticed := seen.clock_step) is not None:
        found.append(clock_step(noticed, seen.now))
    for depth in seen.depths:
        waited = _waited(depth, seen)
        if depth.paused_at is None and waited > settings.OLDEST_DUE_MAX:
            limit = f"OLDEST_DUE_MAX {settings.OLDEST_DUE_MAX:g} s"
            found.append(
                f"Queue {depth.queue}: the oldest due task waits since {ago(waited)} ({limit})."
            )
    if seen.dead_letters > settings.DEAD_LETTERS_MAX:
        found.append(
            f"{_open_letters(seen.dead_letters)} (DEAD_LETTERS_MAX {settings.DEAD_LETTERS_MAX})."
        )
    return found


def _open_letters(number: int) -> str:
    return "1 dead letter is open" if number == 1 else f"{number} dead letters are open"


def clock_step(node: Node, now: datetime) -> str:
    """Return the sentence about the step of the database's clock that this node noticed."""
    step, at = node.clock_step or 0.0, node.clock_step_at or now
    way = "forward" if step > 0 else "back"
    return (
        f"The database's clock was set {way} by {abs(step):,.1f} s,"
        f" {ago((now - at).total_seconds())} ago (noticed by {node.name}). Check its time"
        " synchronization."
    )


def node_problems(node: Node, seen: Overview) -> list[str]:
    """Return the problems of a live node: it makes no progress, or the clock of its host differs
    too much.
    """
    found, bound = [], conf.SKEW_MAX
    if node.pk in seen.stalled:
        found.append(f"Node {node.name} has stalled: {seen.stalled[node.pk]}. Restart it.")
    if node.skew is not None and abs(node.skew) > bound and not seen.is_silent(node):
        way = "ahead of" if node.skew > 0 else "behind"
        found.append(
            f"Node {node.name}: the clock of {node.host} is {abs(node.skew):.1f} s {way} the"
            f" database's (at most {bound:g} s are allowed)."
        )
    return found


def warnings(seen: Overview, broker: str | None) -> list[str]:
    """Return the warnings, which do not change the exit code."""
    found = [f"The broker does not answer from here: {broker}."] if broker else []
    for depth in seen.depths:
        found += _warnings_of(depth, seen)
    found += limit_waits(seen.limits)
    found += [
        f"Tasks of weight {limit.too_heavy} wait for the limit {limit.scope}, which is smaller:"
        " they can never start."
        for limit in seen.limits
        if limit.too_heavy is not None
    ]
    found += [text for node in seen.alive(NodeKind.WORKER) if (text := _untimed(node))]
    for node in seen.alive(NodeKind.SCHEDULER):
        found += _polling(node) + _failing(node)
    found += [
        f"Node {node.name} missed its heartbeats." for node in seen.nodes if seen.is_silent(node)
    ]
    found += _differences(seen)
    for name, number in seen.unknown.items():
        found.append(f"{waiting(number)} for {name}, which this process does not have.")
    if seen.connections_allowed is not None and seen.connections_needed > seen.connections_allowed:
        found.append(_arithmetic(seen))
    return found


def _warnings_of(depth: Depth, seen: Overview) -> list[str]:
    found = []
    if depth.misrouted_at is not None and seen.now - depth.misrouted_at < MISROUTED_FOR:
        since = ago((seen.now - depth.misrouted_at).total_seconds())
        found.append(
            f"Queue {depth.queue}: {depth.misrouted} messages for its tasks were consumed from"
            f" another queue and started nothing, the last one {since} ago from"
            f" {depth.misrouted_from}."
        )
    if depth.late:
        found.append(
            f"Queue {depth.queue}: {depth.late} runs take longer than their expected duration."
        )
    if depth.paused_at is not None:
        since = ago((seen.now - depth.paused_at).total_seconds())
        why = f": {depth.reason}" if depth.reason else ""
        found.append(f"Queue {depth.queue} is paused since {since} by {depth.paused_by}{why}.")
    elif (depth.due or depth.queued) and not depth.workers:
        found.append(f"Queue {depth.queue}: no worker listens.")
    return found


def _polling(node: Node) -> list[str]:
    """Report schedulers that poll although a notifier is configured."""
    states = {"due index": node.index_state, "wake-ups": node.wakeups_state}
    odd = {
        what: state
        for what, state in states.items()
        if state.startswith("polling") or "unreadable" in state
    }
    return [f"Node {node.name}, {what}: {state}." for what, state in odd.items()]


def _failing(node: Node) -> list[str]:
    """Return a text for each failing step of a scheduler; its log has the tracebacks."""
    return [
        f"Node {node.name}: {one['what']} failed {one['number']} times in a row in"
        f" {ago(one['since'])} ({one['error']}); see its log."
        for one in node.failing or ()
    ]


def _differences(seen: Overview) -> list[str]:
    """Return a warning if the live nodes use different releases of the package or of the time zone
    database.
    """
    node_versions = [
        node.versions for node in seen.nodes if node.versions and not seen.is_silent(node)
    ]
    parts = {
        part: sorted({str(one.get(part)) for one in node_versions})
        for part in ("package", "tzdata")
    }
    return [
        f"The nodes have different releases of {part}: {', '.join(found)}."
        for part, found in parts.items()
        if len(found) > 1
    ]


def _untimed(node: Node) -> str:
    """Return a warning for each worker whose pool cannot enforce the time limits of tasks on its
    queues.
    """
    if node.pool in ("", "prefork"):
        return ""
    options = (registry.get(name).options for name in sorted(registry.names()))
    limited = [one for one in options if one.timeout is not None or one.soft_timeout is not None]
    # The functions of this package check their limits by themselves.
    own = [one for one in limited if not one.name.startswith(_PACKAGE)]
    names = [one.name for one in own if _queue_of(one) in node.queues]
    if not names:
        return ""
    return (
        f"Node {node.name} has the pool {node.pool!r}, which cannot interrupt"
        f" {'1 task' if len(names) == 1 else f'{len(names)} tasks'} with time limits."
    )


def _queue_of(options: TaskOptions) -> str | None:
    """Return the queue of a task; None if Celery's routing gives none, which a system check
    reports.
    """
    try:
        return ports.queue_of(options.name, options.queue)
    except DurableTasksError:
        return None


def _waited(depth: Depth, seen: Overview) -> float:
    return (seen.now - depth.oldest_due_at).total_seconds() if depth.oldest_due_at else 0.0


def _arithmetic(seen: Overview) -> str:
    allowed = (
        "a file has no limit"
        if seen.connections_allowed is None
        else f"allowed: {seen.connections_allowed}"
    )
    workers, schedulers = seen.alive(NodeKind.WORKER), seen.alive(NodeKind.SCHEDULER)
    concurrency = sum(node.concurrency for node in workers)
    return (
        f"connections: at most {seen.connections_needed} for {len(workers)} workers with a"
        f" concurrency of {concurrency} (3 a prefork child, 1 a parent) and {len(schedulers)}"
        f" schedulers ({PER_SCHEDULER} each), and 1 a web thread or process; {allowed}"
    )


def _queue_row(depth: Depth, seen: Overview) -> dict[str, Any]:
    return {**dataclasses.asdict(depth), "oldest_due": round(_waited(depth, seen), 3)}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a queue as text; a plus sign follows a number at which counting stopped."""
    return {**row, "pending": shown_count(row["pending"]), "due": shown_count(row["due"])}


def _node_row(node: Node, seen: Overview) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(node, name, None) for name in (*_NODE, *_STATES)}
    row["running"] = None if node.active is None else node.active.get("number")
    row["skew"] = None if node.skew is None else round(node.skew, 3)
    return {"id": node.pk, **row, "state": _state(node, seen)}


def _state(node: Node, seen: Overview) -> str:
    states = {
        "silent": seen.is_silent(node),
        "stalled": node.pk in seen.stalled,
        "draining": node.draining,
        "leads": seen.is_led and node == seen.leader,
    }
    return next((state for state, holds in states.items() if holds), "alive")


def report(seen: Overview, broker: str | None, *, deploy: bool = False) -> dict[str, Any]:
    """Return the whole status as one object. ``deploy``: alarms are warnings."""
    found, later = (faults(seen), alarms(seen)) if deploy else (problems(seen), [])
    return {
        "at": seen.now,
        "healthy": not found,
        "problems": found,
        "warnings": later + warnings(seen, broker),
        "depth": {status: number for status, (number, _) in totals(seen.depths).items()},
        "depth_is_exact": all(exact for _, exact in totals(seen.depths).values()),
        "oldest_due": max((_waited(depth, seen) for depth in seen.depths), default=0.0),
        "queues": [_queue_row(depth, seen) for depth in seen.depths],
        "dead_letters": seen.dead_letters,
        "alerts": [{name: getattr(alert, name) for name in _ALERT} for alert in seen.alerts],
        "leader": (
            {
                "name": seen.leader.name if seen.leader else "?",
                "id": seen.leader and seen.leader.pk,
                "term": seen.term,
                "until": seen.led_until,
            }
            if seen.is_led
            else None
        ),
        "nodes": [_node_row(node, seen) for node in seen.nodes],
        "unknown_tasks": seen.unknown,
        "connections": {"needed": seen.connections_needed, "allowed": seen.connections_allowed},
        "broker": broker or "answers",
    }


def _text(data: dict[str, Any], seen: Overview) -> str:
    leader = f"{data['leader']['name']}, term {seen.term}" if data["leader"] else "none"
    depth = ", ".join(
        f"{status} {number}{'' if exact else '+'}"
        for status, (number, exact) in totals(seen.depths).items()
    )
    lines = [
        f"{'healthy' if data['healthy'] else 'UNHEALTHY'} at {cell(seen.now)}",
        *(f"  problem: {text}" for text in data["problems"]),
        *(f"  warning: {text}" for text in data["warnings"]),
        "",
        f"depth: {depth}; oldest due: {ago(data['oldest_due'])}",
        f"dead letters: {seen.dead_letters} open",
        f"leader: {leader}",
        f"broker: {data['broker']}",
        _arithmetic(seen),
        "",
        table(_QUEUE, [_shown(row) for row in data["queues"]], "no queue has work or workers"),
        "",
        table(_NODE, data["nodes"], "no node is alive"),
    ]
    lines += ["", table(_ALERT, data["alerts"])] if data["alerts"] else []
    reach = [row for row in data["nodes"] if row["index_state"] or row["wakeups_state"]]
    lines += ["", table(_REACH, reach)] if reach else []
    return "\n".join(lines)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--deploy",
        action="store_true",
        help=(
            "exit with 1 only for what a deploy can cause (schedulers, leader, nodes, queues that"
            " the broker rejects); open dead letters and late tasks are warnings"
        ),
    )


def run(options: Options, out: Output) -> int:
    """Show the status."""
    problem = inspect.load_tasks()
    if problem is not None:
        out.note(f"The modules of tasks cannot be imported: {problem}")
    seen = overview(registry.names())
    data = report(seen, inspect.broker_problem(), deploy=options["deploy"])
    out.emit(data, _text(data, seen))
    return OK if data["healthy"] else UNHEALTHY


STATUS = Subcommand(
    name="status",
    summary=(
        "show depth, oldest due task, dead letters, leader, nodes and connections; exits with 1"
        " above thresholds"
    ),
    examples=("status", "status --format json", "status --deploy"),
    arguments=_arguments,
    run=run,
)
