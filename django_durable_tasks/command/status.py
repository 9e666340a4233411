"""``durable status`` and ``durable health``, with exit codes for monitoring."""

from __future__ import annotations

import dataclasses
import platform
from contextlib import suppress
from datetime import datetime

from django.db import Error

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.cluster.queues import MISROUTED_FOR, Depth, totals
from django_durable_tasks.cluster.status import PER_SCHEDULER, Overview, overview, vitals
from django_durable_tasks.command.subcommand import (
    OK,
    UNHEALTHY,
    Options,
    Output,
    argument,
    cell,
    facts_of,
    one_of,
    subcommand,
    table,
)
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.limits.operator_limits import limit_waits
from django_durable_tasks.limits.scopes import waiting
from django_durable_tasks.models import Node, NodeKind
from django_durable_tasks.store.connections import TimeLimits, dedicated_connection
from django_durable_tasks.store.errors import is_unmigrated, reason_of
from django_durable_tasks.store.tables import is_exact
from django_durable_tasks.tasks.explanations import ago
from django_durable_tasks.texts import counted

# ``durable status`` -------------------------------------------------------------------------------


COUNTS = ("pending", "due", "limited", "queued", "unanswered", "running", "late")
OF_NODE = ("name", "kind", "host", "pid", "pool", "concurrency")
_OF_QUEUE = ("oldest_due", "workers", "concurrency", "paused_by", "rejected", "misrouted")
_QUEUE = ("queue", *COUNTS, *_OF_QUEUE)
_NODE = (*OF_NODE, "running", "queues", "skew", "last_seen_at", "state")
_REACH = ("name", "index_state", "wakeups_state")
_ALERT = ("kind", "subject", "detail", "since")


def _faults(seen: Overview) -> list[str]:
    """Return what is wrong with the processes and their configuration: what a deploy can cause."""
    texts = []
    if not seen.alive(NodeKind.SCHEDULER):
        texts.append("No scheduler is alive: run `manage.py run_scheduler`.")
    if not seen.is_led:
        texts.append(
            "No scheduler leads: silent runs are not handed on, and lost messages are not"
            " republished."
        )
    for node in seen.nodes:
        if node.pk in seen.stalled:
            texts.append(f"Node {node.name} has stalled: {seen.stalled[node.pk]}. Restart it.")
        if node.skew is not None and abs(node.skew) > conf.SKEW_MAX and not seen.is_silent(node):
            way = "ahead of" if node.skew > 0 else "behind"
            texts.append(
                f"Node {node.name}: the clock of {node.host} is {abs(node.skew):.1f} s {way} the"
                f" database's (at most {conf.SKEW_MAX:g} s are allowed)."
            )
    return texts + [
        f"Queue {depth.queue}: the broker rejects its messages ({depth.rejected});"
        f" {waiting(depth.pending + depth.queued)}."
        for depth in seen.depths
        if depth.rejected
    ]


def _alarms(seen: Overview) -> list[str]:
    """Return what is wrong with tasks and with the database's clock."""
    settings, texts = conf.settings(), []
    if (node := seen.clock_step) is not None:
        step, at = node.clock_step or 0.0, node.clock_step_at or seen.now
        texts.append(
            f"The database's clock was set {'forward' if step > 0 else 'back'} by {abs(step):,.1f}"
            f" s, {_since(at, seen)} ago (noticed by {node.name}). Check its time synchronization."
        )
    for depth in seen.depths:
        waited = _waited(depth, seen)
        if depth.paused_at is None and waited > settings.OLDEST_DUE_MAX:
            texts.append(
                f"Queue {depth.queue}: the oldest due task waits since {ago(waited)}"
                f" (OLDEST_DUE_MAX {settings.OLDEST_DUE_MAX:g} s)."
            )
    number = seen.dead_letters
    if number > settings.DEAD_LETTERS_MAX:
        letters = f"{counted(number, 'dead letter is', 'dead letters are')} open"
        texts.append(f"{letters} (DEAD_LETTERS_MAX {settings.DEAD_LETTERS_MAX}).")
    return texts


def _warnings(seen: Overview, broker: str | None) -> list[str]:
    """Return the warnings, which do not change the exit code."""
    texts = [f"The broker does not answer from here: {broker}."] if broker else []
    for depth in seen.depths:
        queue = f"Queue {depth.queue}"
        if depth.misrouted_at is not None and seen.now - depth.misrouted_at < MISROUTED_FOR:
            number = depth.misrouted
            messages = counted(number, "message for its tasks was", "messages for its tasks were")
            texts.append(
                f"{queue}: {messages} consumed from another queue and started nothing, the last one"
                f" {_since(depth.misrouted_at, seen)} ago from {depth.misrouted_from}."
            )
        if depth.late:
            runs = counted(depth.late, "run takes longer than its", "runs take longer than their")
            texts.append(f"{queue}: {runs} expected duration.")
        if depth.paused_at is not None:
            why = f": {depth.reason}" if depth.reason else ""
            since = _since(depth.paused_at, seen)
            texts.append(f"{queue} is paused since {since} by {depth.paused_by}{why}.")
        elif depth.to_start and not depth.workers:
            texts.append(f"{queue}: no worker listens, and {waiting(depth.to_start)}.")
    texts += limit_waits(seen.limits)
    texts += [
        f"Tasks of weight {limit.too_heavy} wait for the limit {limit.scope}, which is smaller:"
        " they can never start."
        for limit in seen.limits
        if limit.too_heavy is not None
    ]
    for node in seen.alive(NodeKind.WORKER):
        # A pool that cannot enforce the time limits of the tasks on its queues.
        number = 0
        for task in (
            map(registry.get, sorted(registry.names())) if node.pool not in ("", "prefork") else ()
        ):
            options = task.options
            is_cancelled = task.is_async and node.pool in ("thread", "solo")
            # The functions of this package check their limits by themselves. A task to which
            # Celery's routing gives no queue is reported by a system check.
            is_ours = options.name.startswith("django_durable_tasks.")
            if options.is_limited_in_time and not is_cancelled and not is_ours:
                with suppress(DurableTasksError):
                    number += ports.queue_of(options.name, options.queue) in node.queues
        if number:
            texts.append(
                f"Node {node.name} has the pool {node.pool!r}, which cannot interrupt"
                f" {counted(number, 'task')} with time limits."
            )
    for node in seen.alive(NodeKind.SCHEDULER):
        # A notifier is configured, and the scheduler polls all the same.
        texts += [
            f"Node {node.name}, {what}: {state}."
            for what, state in (("due index", node.index_state), ("wake-ups", node.wakeups_state))
            if state.startswith("polling") or "unreadable" in state
        ]
        texts += [
            f"Node {node.name}: {step['what']} failed {step['number']} times in a row in"
            f" {ago(step['since'])} ({step['error']}); see its log."
            for step in node.failing or ()
        ]
    silent = [node for node in seen.nodes if seen.is_silent(node)]
    texts += [f"Node {node.name} missed its heartbeats." for node in silent]
    versions = [node.versions for node in seen.nodes if node.versions and node not in silent]
    for package in ("package", "tzdata"):
        releases = sorted({str(version.get(package)) for version in versions})
        if len(releases) > 1:
            texts.append(f"The nodes have different releases of {package}: {', '.join(releases)}.")
    texts += [
        f"{waiting(number)} for {name}, which this process does not have."
        for name, number in seen.unknown.items()
    ]
    if seen.connections_allowed is not None and seen.connections_needed > seen.connections_allowed:
        texts.append(_connections(seen))
    return texts


def _since(instant: datetime, seen: Overview) -> str:
    return ago((seen.now - instant).total_seconds())


def _waited(depth: Depth, seen: Overview) -> float:
    return (seen.now - depth.oldest_due_at).total_seconds() if depth.oldest_due_at else 0.0


def _connections(seen: Overview) -> str:
    allowed = (
        "a file has no limit"
        if seen.connections_allowed is None
        else f"allowed: {seen.connections_allowed}"
    )
    workers, schedulers = seen.alive(NodeKind.WORKER), seen.alive(NodeKind.SCHEDULER)
    concurrency = sum(node.concurrency for node in workers)
    return (
        f"connections: at most {seen.connections_needed} for {counted(len(workers), 'worker')}"
        f" with a concurrency of {concurrency} (3 a prefork child, 1 a parent) and"
        f" {counted(len(schedulers), 'scheduler')} ({PER_SCHEDULER} each), and 1 a web thread or"
        f" process; {allowed}"
    )


@subcommand(
    argument(
        "--deploy",
        action="store_true",
        help=(
            "exit with 1 only for what a deploy can cause (schedulers, leader, nodes, queues that"
            " the broker rejects); open dead letters and late tasks are warnings"
        ),
    )
)
def status(options: Options, out: Output) -> int:
    """Show depth, oldest due task, dead letters, leader, nodes and connections; exits with 1 above
    thresholds.

    Examples:
        status
        status --format json
        status --deploy
    """
    problem = inspect.load_tasks()
    if problem is not None:
        out.note(f"The modules of tasks cannot be imported: {problem}")
    seen, broker = overview(registry.names()), inspect.broker_problem()
    problems, warnings = _faults(seen), _warnings(seen, broker)
    if options["deploy"]:
        warnings = _alarms(seen) + warnings
    else:
        problems += _alarms(seen)
    healthy, depths = not problems, totals(seen.depths)
    oldest_due = max((_waited(depth, seen) for depth in seen.depths), default=0.0)
    queues = [
        {**dataclasses.asdict(depth), "oldest_due": round(_waited(depth, seen), 3)}
        for depth in seen.depths
    ]
    nodes = []
    for node in seen.nodes:
        states = {
            "silent": seen.is_silent(node),
            "stalled": node.pk in seen.stalled,
            "draining": node.draining,
            "leads": seen.is_led and node == seen.leader,
        }
        row = facts_of(node, "names")
        row["running"] = None if node.active is None else node.active.get("number")
        row["skew"] = None if node.skew is None else round(node.skew, 3)
        row["state"] = next((state for state, holds in states.items() if holds), "alive")
        nodes.append(row)
    alerts = [{name: getattr(alert, name) for name in _ALERT} for alert in seen.alerts]
    leader = None
    if seen.is_led:
        leader = {
            "name": seen.leader.name if seen.leader else "?",
            "id": seen.leader and seen.leader.pk,
            "term": seen.term,
            "until": seen.led_until,
        }
    data = {
        "at": seen.now,
        "healthy": healthy,
        "problems": problems,
        "warnings": warnings,
        "depth": depths,
        "depth_is_exact": all(map(is_exact, depths.values())),
        "oldest_due": oldest_due,
        "queues": queues,
        "dead_letters": seen.dead_letters,
        "alerts": alerts,
        "leader": leader,
        "nodes": nodes,
        "unknown_tasks": seen.unknown,
        "connections": {"needed": seen.connections_needed, "allowed": seen.connections_allowed},
        "broker": broker or "answers",
    }
    depth = ", ".join(f"{status} {number}" for status, number in depths.items())
    reach = [row for row in nodes if row["index_state"] or row["wakeups_state"]]
    lines = [
        f"{'healthy' if healthy else 'UNHEALTHY'} at {cell(seen.now)}",
        *(f"  problem: {text}" for text in problems),
        *(f"  warning: {text}" for text in warnings),
        "",
        f"depth: {depth}; oldest due: {ago(oldest_due)}",
        f"dead letters: {seen.dead_letters} open",
        f"leader: {leader['name']}, term {seen.term}" if leader else "leader: none",
        f"broker: {data['broker']}",
        _connections(seen),
        "",
        table(_QUEUE, queues, "no queue has work or workers"),
        "",
        table(_NODE, nodes, "no node is alive"),
    ]
    lines += ["", table(_ALERT, alerts)] if alerts else []
    lines += ["", table(_REACH, reach)] if reach else []
    return out.emit(data, "\n".join(lines), OK if healthy else UNHEALTHY)


# ``durable health``: whether a node should be restarted, for liveness probes ---------------------


# Seconds. A probe must answer before the time limit of the liveness check.
_TIMEOUTS = TimeLimits(statement=2.0, lock=1.0, idle=2.0)
_HEALTH = ("name", "kind", "host", "pid", "state", "fault")
_PROBED = ("name", "kind", "host", "pid", "last_seen_at", "last_scan_at", "last_start_at")


@subcommand(
    one_of(
        argument(
            "--node",
            metavar="NAME",
            help="the node of this name, as `status` and the admin show it",
        ),
        argument("--here", action="store_true", help="every node of this host (the default)"),
    )
)
def health(options: Options, out: Output) -> int:
    """Check for a liveness probe that the nodes of this host are alive and work; exit with 1 if one
    must be restarted.

    Examples:
        health
        health --here --format json
        health --node scheduler-a
    """
    name = options["node"]
    filters = {"name": name} if name else {"host": platform.node()}
    try:
        with dedicated_connection(_TIMEOUTS):
            node_vitals = vitals(Node.objects.filter(**filters))
    except Error as error:
        # That is not a reason to restart a process that waits for the database.
        reason = reason_of(error) if is_unmigrated(error) else str(error).strip()
        out.note(f"The nodes cannot be read, so the state of the nodes is unknown: {reason}")
        return out.emit({"healthy": None, "nodes": []}, "unknown")
    healthy = bool(node_vitals) and not any(vital.fault for vital in node_vitals)
    rows = [
        {
            **{column: getattr(vital.node, column) for column in _PROBED},
            "state": vital.state,
            "fault": vital.fault,
        }
        for vital in node_vitals
    ]
    place = f"no node is named {name}" if name else f"no node runs on {platform.node()}"
    verdict = "healthy" if healthy else "UNHEALTHY"
    return out.emit(
        {"healthy": healthy, "nodes": rows},
        f"{verdict}\n{table(_HEALTH, rows, place)}",
        OK if healthy else UNHEALTHY,
    )
