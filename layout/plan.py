"""The plan of the merge: which modules become one file, by subject.

    python layout/plan.py ROOT plan.json

Each entry of ``FILES`` is a package with its new files, and the modules that each of them takes, in
the order in which the story is best read (imports decide before this order). A module that is not
named stays as it is. A module name is relative to its package, a leading ``/`` makes it relative
to ``django_durable_tasks``. ``.`` as a file turns the package itself into one module.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PACKAGE = "django_durable_tasks"

FILES: dict[str, dict[str, str]] = {
    "": {
        "conf": "conf_fields conf_checks conf_monitoring conf_notifications conf_interfaces conf",
    },
    "notifier": {
        "listener": "postgresql redis listener",
        "notify_on_commit": "message notify_on_commit",
    },
    "checks": {"configuration": "settings celery tasks"},
    "due_index": {
        "memory": "types memory",
        "redis": "redis_client redis redis_entries",
        "fallback": "fallback loader",
    },
    "diagrams": {
        "model": "model palette labels",
        "outline": "layers grouping outline tooltips",
        "layout": "layout.mesh layout.ordering layout.alignment layout.placement layout.drawing",
        "svg": "svg.markup svg.paths svg.shapes svg.legend svg.document",
        "texts": "text mermaid json",
    },
    "rules/limits": {".": "options admission"},
    "rules/metrics": {".": "counts gaps minutes gauges charts"},
    "rules/tenants": {".": "texts api_keys quotas task_filters"},
    "rules/notifications": {
        ".": "events destinations subscriptions setting_values message_types messages",
    },
    "rules/recurring/effective": {
        ".": "types bounded wall_clock roll segments business_days overrides compose",
    },
    "rules/recurring/timetables": {
        "types": "types union",
        "zones": "zones clock_changes zone_offsets",
        "intervals": "instants intervals calendar_intervals",
        "wall_times": "wall_times wall_timetable",
        "cron": "cron_syntax cron",
        "rrule": "rrule_syntax rrule_days rrule",
        "builder": "builder describe",
    },
    "rules/recurring": {
        "calendars": "calendars icalendar",
        "options": "options declarations",
        "misfires": "policies jitter misfires overlaps backfill",
    },
    "rules/targets": {
        "addresses": "addresses policy urls",
        "http_request": "headers content_id signing http_request",
        "answers": "deliveries answers breaker",
    },
    "rules/tasks": {
        "options": "durations key_templates option_hints retries options",
        "arguments": "masking arguments",
        "endings": "shared_crashes endings",
        "task_values": "identifiers trace_context new_task runs",
        "explanations": "comments explanations",
        "claims": "demands shards",
    },
    "rules/workflows": {
        ".": "step upstreams builder followups plan_checks plan",
    },
    "models": {
        "fields": "instants exact_text indexes clock standing",
        "tasks": "task_actions task_queries task execution_log dead_letter task_request"
        " bulk_operation",
        "workflows": "workflow_run task_dependency ending_event",
        "schedules": "recurring_task occurrence occurrence_override calendar calendar_day shadow_fire",
        "cluster": "node lease queue_control batch_message",
        "limits": "limit limit_bucket",
        "tenants": "tenant tenant_quota tenant_requests staff_tenant api_key idempotent_request",
        "callbacks": "endpoint delivery_attempt",
        "notifications": "notification_setting notification_event alert",
        "audit": "audit_entry",
        "metrics": "metric_series metric_minute metric_position uncounted_ending",
    },
    "engine/db": {
        "clock": "clock clock_estimate clock_steps",
        "connections": "jsonb connections left_transactions",
        "errors": "error_codes outages deadlocks isolation",
        "postgresql": "arrays copy direct",
        "commit_hooks": "commit_hooks publish_on_commit",
        "tables": "tables seed_rows",
    },
    "engine/audit": {".": "actor task_values recorder history"},
    "engine/transitions": {
        "guarded_update": "change_tracking change_signals guarded_update",
        "inserts": "stored_arguments row_values copied_rows inserts",
        "attempt_log": "attempt_log dead_letters uncounted_endings",
        "claims": "returned_rows claims limit_waits",
        "endings": "endings requests clock_steps",
    },
    "engine/limits": {
        "waitlist": "usage waitlist",
        "admission": "shares admission",
        "release": "free_capacity release priority_aging",
        "backpressure": "backpressure next_due",
    },
    "engine/tasks": {
        "new_task": "traces new_task",
        "enqueue": "fast_path insert keys enqueue",
        "claim": "claim misrouted",
        "attempts": "opened_runs attempts hand_over",
        "batches": "batch_messages batches",
        "endpoints": "endpoints deliveries",
        "operator_actions": "operator_actions edit_waiting dead_letters",
        "retention": "retention clock_steps",
    },
    "engine/dependencies": {
        "edges": "edges inserts run_tree",
        "replay": "locked_subgraph replay",
        "resolve": "resolve results",
    },
    "engine/metrics": {
        ".": "new_rows totals attempts creations endings occurrences retention chart_points",
    },
    "engine/notification_events": {".": "subscriptions capture"},
    "engine/notifications": {".": "setting_changes deliveries alerts probes"},
    "engine/tenants": {
        "access": "api_keys staff",
        "quotas": "quotas quota_events request_rates",
        "idempotent_requests": "dry_runs idempotent_requests answered_tasks",
    },
    "engine/cluster": {
        "nodes": "nodes leadership",
        "status": "health status gauges",
    },
    "engine/verify": {
        "tasks": "tasks stuck_tasks limits",
        "workflows": "workflows dependencies",
        "installation": "nodes shards metrics",
    },
    "engine/workflows": {
        "start": "rows start",
        "runs": "runs deadlines followups",
        "operations": "operations dry_run",
    },
    "engine/recurring": {
        "schedule_cache": "schedule_rows schedule_cache",
        "ledger": "ledger retention",
        "tick_plan": "publish_due occurrence_tasks known_schedules tick_plan",
        "trigger": "postponed fire_events trigger",
        "schedules": "fire_times schedules overrides",
        "manual_runs": "run_now backfill",
        "recompute": "tzdata clock_steps",
        "explain": "explain preview",
    },
    "celery": {
        "result": "stored_exceptions result",
        "operations_by_id": "operations_by_id remote_control",
        "plain_messages": "plain_messages plain_tasks",
        "inspect": "inspect explain zones",
        "context": "context map_tasks",
    },
    "celery/execution": {
        "batch_runs": "batch_events batch_in_progress batch_runs",
        "gate": "body_request gate",
        "endings": "outcomes retries endings",
        "live_runs": "live_runs heartbeat",
        "worker_repairs": "consumed_queue prefetch_count wake_consumer redis_messages",
    },
    "celery/publishing": {
        "prepared_messages": "message_id prepared_messages",
        "publisher": "publisher batch_publisher dispatcher",
        "routing": "broker_addresses task_queues routing",
    },
    "scheduler": {
        "dispatch_loop": "queue_rotation publish_windows batch_dispatch dispatch_loop",
        "threads": "steps threads",
        "reap_dead_nodes": "maintenance.reap_dead_nodes",
        "jobs": "maintenance.job maintenance.age_priorities maintenance.apply_requests"
        " maintenance.correct_clock_steps maintenance.count_endings maintenance.count_metrics"
        " maintenance.deliver_notifications maintenance.end_late_workflows"
        " maintenance.fill_due_index maintenance.find_deleted_upstreams"
        " maintenance.finish_starts maintenance.probe_workers maintenance.prune"
        " maintenance.recompute_fire_times maintenance.release_overlaps"
        " maintenance.resolve_dependents maintenance.watch_alerts"
        " maintenance.watch_dead_letters",
    },
    "scheduler/maintenance": {".": "schedule runner"},
    "targets": {
        "http": "http.resolver http.deadline_socket http.connections http.exchange http.client"
        " http.outgoing",
        "internal_tasks": "bulk_operation end_of_workflow maps plain_celery_task verify watchdog",
        "notification_delivery": "notification_email notification_delivery",
    },
    "metrics": {"exposition": "families exposition server"},
    "workflows": {"canvas": "canvas_parts canvas"},
    "contrib/beat": {
        "tables": "mapping tables",
        "shadow_fires": "matching shadow_fires",
    },
    "operations": {
        "tasks": "tasks dead_letters",
        "workflows": "workflows dependencies gates",
        "limits": "limits queues",
        "schedules": "schedules calendars",
        "tenants": "tenants api_keys signing_secrets",
    },
    "admin": {
        "actions": "operation_form confirm_page actions",
        "readonly": "newest_rows readonly",
        "filters": "filters workflow_filters recurring_filters",
        "fields": "fields edit_conflicts",
        "tasks": "task_status replay_form tasks",
        "execution_log": "execution_log deliveries endpoints",
        "dependencies": "dependency_form dependencies",
        "graphs": "graph_images graph_actions graph_pages task_graph",
        "workflow_runs": "progress workflow_page workflow_runs",
        "recurring_form": "recurring_form fire_table recurring_editing",
        "recurring_tasks": "outcome_marks recurring_actions recurring_page recurring_tasks",
        "calendars": "calendar_dates calendar_form calendar_editing calendars",
        "overview": "charts overview",
        "queues": "queues limits",
        "tenants": "tenants api_keys",
    },
    "api": {
        "problems": "problems exception_mapping",
        "fields": "json_body fields",
        "endpoint": "addresses endpoint",
        "authentication": "throttle authentication",
        "lists": "objects lists",
        "writes": "writes operation_calls",
        "tasks": "target_mapping task_fields argument_edits new_tasks task_lists",
    },
    "api/views": {
        "tasks": "tasks task_operations deliveries bulk operations",
        "recurring_tasks": "recurring_tasks fire_times calendars",
        "workflows": "graphs workflows",
        "scheduler": "scheduler queues metrics",
        "tenants": "tenants quota audit signing_secrets",
        "pages": "problem_pages schema_pages",
    },
    "management/durable": {
        "subcommand": "subcommand output",
        "task_actions": "task_actions edit_actions",
        "graph": "graph_output graph graph_actions",
        "queue_actions": "queue_actions limit_actions",
        "tenant_actions": "api_key_actions staff_actions quota_actions",
        "notify_actions": "notify_actions check_url",
        "arguments": "calendar_sources schedule_arguments selectors operation_arguments bulk",
        "recurring": "recurring schedule_actions calendar_actions sync",
        "fire_times": "preview simulate dst explain",
        "beat": "import_beat shadow",
        "listing": "workflow_pages listing show",
        "status": "health status",
        "audit": "audit rotate_keys",
    },
}

from texts import RENAMES, SUBJECTS  # noqa: E402 - the tables of names and of docstrings


def main(root: Path, target: Path) -> None:
    """Write the plan, or fail with the modules that it names and that do not exist."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", f"{PACKAGE}/*.py"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    known = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in listed
        if (root / path).exists()
    }
    moves: dict[str, str] = {}
    order: dict[str, list[str]] = {}
    missing = []
    for package, files in FILES.items():
        home = ".".join([PACKAGE, *filter(None, package.split("/"))])
        for file, members in files.items():
            new = home if file == "." else f"{home}.{file}"
            for member in members.split():
                old = f"{PACKAGE}.{member[1:]}" if member.startswith("/") else f"{home}.{member}"
                if old not in known:
                    missing.append(old)
                    continue
                if old in moves:
                    raise SystemExit(f"{old} is named twice")
                moves[old] = new
                order.setdefault(new, []).append(old)
    if missing:
        print("not found (renamed meanwhile?):", *missing, sep="\n  ", file=sys.stderr)
    for new in order:
        if new in known and new not in order[new] and not (root / new.replace(".", "/")).is_dir():
            raise SystemExit(f"{new} exists and is not one of the modules that it takes")
    plan = {
        "moves": moves,
        "order": order,
        "renames": {f"{PACKAGE}.{old}": names for old, names in RENAMES.items()},
        "subjects": {f"{PACKAGE}.{new}": text for new, text in SUBJECTS.items()},
    }
    target.write_text(json.dumps(plan, indent=1) + "\n")
    gone = len(moves) - len(order)
    print(
        f"{len(moves)} modules become {len(order)}; {len(known)} files become {len(known) - gone}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
