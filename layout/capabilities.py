"""The second plan, for the tree after the first: capability packages instead of layers.

    python layout/capabilities.py ROOT plan2.json

``cycles.py`` and ``merge_modules.py`` take its plan as they take the first one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sources import PACKAGE, modules_of

# The new module, and the old modules that it takes.
FILES: dict[str, str] = {
    # below the models
    "encryption": "encryption rules.encryption",
    "task_values": "rules.tasks.task_values",
    # store
    "store.background_refresh": "engine.db.background_refresh",
    "store.clock": "engine.db.clock",
    "store.commit_hooks": "engine.db.commit_hooks",
    "store.connections": "engine.db.connections",
    "store.errors": "engine.db.errors",
    "store.postgresql": "engine.db.postgresql",
    "store.statements": "engine.db.statements",
    "store.tables": "engine.db.tables",
    # states
    "states.machine": "rules.states",
    "states.decisions": "rules.tasks.endings",
    "states.demand": "rules.tasks.claims",
    "states.attempt_log": "engine.transitions.attempt_log",
    "states.batches": "engine.transitions.batches",
    "states.claims": "engine.transitions.claims",
    "states.dependencies": "engine.transitions.dependencies",
    "states.endings": "engine.transitions.endings",
    "states.guarded_update": "engine.transitions.guarded_update",
    "states.inserts": "engine.transitions.inserts",
    "states.runs": "engine.transitions.runs",
    # what the core records for contrib, in the transaction in which it occurs
    "outbox.events": "rules.notification_events",
    "outbox.capture": "engine.notification_events",
    "audit": "rules.audit engine.audit",
    # limits
    "limits.scopes": "rules.limits",
    "limits.admission": "engine.limits.admission",
    "limits.backpressure": "engine.limits.backpressure",
    "limits.config": "engine.limits.config",
    "limits.operator_limits": "engine.limits.operator_limits",
    "limits.overlap": "engine.limits.overlap",
    "limits.release": "engine.limits.release",
    "limits.waitlist": "engine.limits.waitlist",
    # dependencies
    "dependencies.joins": "rules.dependencies",
    "dependencies.references": "rules.references",
    "dependencies.edges": "engine.dependencies.edges",
    "dependencies.edit": "engine.dependencies.edit",
    "dependencies.replay": "engine.dependencies.replay",
    "dependencies.resolve": "engine.dependencies.resolve",
    # targets: what tasks need of HTTP callbacks
    "targets.addresses": "rules.targets.addresses",
    "targets.answers": "rules.targets.answers",
    "targets.http_request": "rules.targets.http_request",
    "targets.endpoints": "engine.tasks.endpoints",
    # tasks
    "tasks.arguments": "rules.tasks.arguments",
    "tasks.explanations": "rules.tasks.explanations",
    "tasks.options": "rules.tasks.options",
    "tasks.attempts": "engine.tasks.attempts",
    "tasks.batches": "engine.tasks.batches",
    "tasks.claim": "engine.tasks.claim",
    "tasks.enqueue": "engine.tasks.enqueue",
    "tasks.key_rotation": "engine.tasks.key_rotation",
    "tasks.new_task": "engine.tasks.new_task",
    "tasks.operator_actions": "engine.tasks.operator_actions",
    "tasks.requests": "engine.tasks.requests",
    "tasks.retention": "engine.tasks.retention",
    # tenants
    "tenants.values": "rules.tenants",
    "tenants.access": "engine.tenants.access",
    "tenants.bulk_operations": "engine.tenants.bulk_operations",
    "tenants.idempotent_requests": "engine.tenants.idempotent_requests",
    "tenants.quotas": "engine.tenants.quotas",
    # schedules
    **{
        f"schedules.timetables.{name}": f"rules.recurring.timetables.{name}"
        for name in "builder cron intervals rrule solar types wall_times zones".split()
    },
    "schedules.business_days": "rules.recurring.calendars",
    "schedules.agenda": "rules.recurring.effective",
    "schedules.misfires": "rules.recurring.misfires",
    "schedules.options": "rules.recurring.options",
    "schedules.explanations": "rules.recurring.explain",
    "schedules.explain": "engine.recurring.explain",
    "schedules.calendars": "engine.recurring.calendars",
    "schedules.ledger": "engine.recurring.ledger",
    "schedules.lifecycle": "engine.recurring.schedules",
    "schedules.manual_runs": "engine.recurring.manual_runs",
    "schedules.recompute": "engine.recurring.recompute",
    "schedules.schedule_cache": "engine.recurring.schedule_cache",
    "schedules.sync": "engine.recurring.sync",
    "schedules.tick_plan": "engine.recurring.tick_plan",
    "schedules.trigger": "engine.recurring.trigger",
    "schedules.writes": "engine.recurring.writes",
    # workflows
    "workflows.builder": "rules.workflows",
    "workflows.graph_data": "engine.workflows.graph_data",
    "workflows.operations": "engine.workflows.operations",
    "workflows.runs": "engine.workflows.runs",
    "workflows.start": "engine.workflows.start",
    # cluster
    "cluster.gauges": "engine.cluster.gauges",
    "cluster.nodes": "engine.cluster.nodes",
    "cluster.queues": "engine.cluster.queues",
    "cluster.status": "engine.cluster.status",
    # celery
    "celery.canvas": "workflows.canvas",
    "celery.filesystem": "celery.transports.filesystem",
    **{
        f"celery.{name}": f"celery.execution.{name}"
        for name in (
            "batch_runs endings gate live_runs redis_records signal_handlers worker_node"
            " worker_repairs"
        ).split()
    },
    **{
        f"celery.{name}": f"celery.publishing.{name}"
        for name in (
            "broker_connection broker_outage confirms prepared_messages publisher routing"
        ).split()
    },
    # capabilities that become Django apps of their own later
    "callbacks.http": "targets.http",
    "callbacks.tasks": "targets.http_callback targets.queue_message",
    "callbacks.queue_messages": "rules.targets.queue_message celery.publishing.queue_messages",
    "notifications.messages": "rules.notifications",
    "notifications.deliveries": "engine.notifications",
    "notifications.task": "targets.notification_delivery",
    "metrics.series": "rules.metrics",
    "metrics.counts": "engine.metrics",
    "metrics.tracing": "tracing",
    "verify.check": "rules.verify engine.verify.check",
    "verify.installation": "engine.verify.installation",
    "verify.schedules": "engine.verify.recurring",
    "verify.tasks": "engine.verify.tasks",
    "verify.workflows": "engine.verify.workflows",
    "verify.runner": "engine.verify.runner",
    "verify.due_index": "due_index.verify",
    # scheduler
    "scheduler.due_index": "due_index.memory",
    "scheduler.redis_index": "due_index.redis",
    "scheduler.shared_index": "due_index.fallback",
    "scheduler.listener": "notifier.listener",
    "scheduler.notify_on_commit": "notifier.notify_on_commit",
    # operations, command
    "contrib.beat.commands": "management.durable.beat",
    "operations.manager_operations": "engine.manager_operations",
    "internal_tasks": "targets.internal_tasks",
    **{
        f"command.{name}": f"management.durable.{name}"
        for name in (
            "arguments audit fire_times graph listing notify_actions queue_actions recurring"
            " status subcommand task_actions tenant_actions verify"
        ).split()
    },
    # api: the fields of a resource beside its views
    "api.views.recurring_tasks": "api.schedule_fields api.views.recurring_tasks",
    "api.views.workflows": "api.new_workflows api.views.workflows",
    # admin: small pages beside the pages that they belong to
    "admin.cluster": "admin.nodes admin.queues",
}

SUBJECTS = {
    "encryption": (
        "AES-256-GCM encryption of the values of a row, and the keys of this process."
    ),
    "audit": (
        "Audit entries: who acts, what an operation changes, the entry in the same transaction,"
        " and retention."
    ),
    "callbacks.tasks": (
        "The durable tasks ``django_durable_tasks.http_callback`` and"
        " ``django_durable_tasks.queue_message``."
    ),
    "callbacks.queue_messages": (
        "Messages for other programs: their arguments, checked at the call and before each"
        " attempt, and their publishing, with confirmation where the broker has it."
    ),
    "verify.check": (
        "The framework of ``durable verify``: findings, the rules for correct values, and the"
        " reading of tables in pages by primary key."
    ),
    "admin.cluster": "The admin pages of nodes and of queues.",
}

RENAMES: dict[str, dict[str, str]] = {}


def main(root: Path, target: Path) -> None:
    """Write the plan."""
    known = set(modules_of(root))
    moves: dict[str, str] = {}
    order: dict[str, list[str]] = {}
    for new, members in FILES.items():
        for member in members.split():
            if f"{PACKAGE}.{member}" not in known:
                raise SystemExit(f"{member} does not exist")
            if f"{PACKAGE}.{member}" in moves:
                raise SystemExit(f"{member} is named twice")
            if member == new and members == new:
                continue
            moves[f"{PACKAGE}.{member}"] = f"{PACKAGE}.{new}"
            order.setdefault(f"{PACKAGE}.{new}", []).append(f"{PACKAGE}.{member}")
    plan = {
        "moves": moves,
        "order": order,
        "renames": {f"{PACKAGE}.{old}": names for old, names in RENAMES.items()},
        "subjects": {f"{PACKAGE}.{new}": text for new, text in SUBJECTS.items()},
    }
    target.write_text(json.dumps(plan, indent=1) + "\n")
    print(f"{len(moves)} modules become {len(order)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
