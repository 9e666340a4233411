"""``list``, ``show``, ``graph``, ``ledger`` and ``audit``: subcommands that read rows.

Pages are selected by key, so that the last page costs as much as the first.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db.models import Count, F

from django_durable_tasks import models
from django_durable_tasks.audit import about, in_sets, masked_arguments, of_task
from django_durable_tasks.celery.inspect import sentences
from django_durable_tasks.choices import OPEN, FireOutcome, RecurringStatus, Status, WorkflowStatus
from django_durable_tasks.cluster import queues
from django_durable_tasks.command.schedules import (
    NAMED,
    find_schedule,
    named,
    schedules,
    tenant_of_schedule,
)
from django_durable_tasks.command.status import COUNTS, OF_NODE
from django_durable_tasks.command.subcommand import (
    OK,
    Options,
    Output,
    argument,
    columns_of,
    count,
    details,
    facts_of,
    filtered,
    hidden,
    hidden_rows,
    letter_id,
    moment,
    refuse,
    subcommand,
    table,
    task_id,
)
from django_durable_tasks.command.tasks import (
    LETTER_LOOKUPS,
    TASK_LOOKUPS,
    dead_letters,
    filters,
    tasks,
)
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models.workflows import WorkflowRunQuerySet
from django_durable_tasks.schedules import explain
from django_durable_tasks.schedules.schedule_cache import overrides_of
from django_durable_tasks.schedules.timetables.builder import words
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.tables import database
from django_durable_tasks.workflows import diagrams
from django_durable_tasks.workflows.diagrams import FILE_FORMATS, draw


def _workflow_runs() -> WorkflowRunQuerySet:
    queryset: WorkflowRunQuerySet = models.WorkflowRun.objects.using(database())
    return queryset.select_related("tenant")


# list ---------------------------------------------------------------------------------------------


_TASK = ("id", "status", "queue", "name", "priority", "run_at", "due_at", "attempts", "reason")
_RUN = ("id", "name", "status", "key", "ended", "total", "failed", "created_at", "completed_at")
_SCHEDULE = (
    "name",
    "status",
    "task",
    "schedule",
    "time_zone",
    "next_run_at",
    "last_run_at",
    "runs_count",
    "status_reason",
)
_MORE_OF_SCHEDULE = ("id", "queue", "timetable", "max_runs", "overlap", "catch_up_mode", "source")
_LETTER = ("id", "task_id", "name", "reason", "fingerprint", "attempts", "created_at", "state")
_OF_LETTER = columns_of(models.DeadLetter, "tenant", "args", "kwargs")
_QUEUE = ("queue", *COUNTS, "oldest_due_at", "workers", "concurrency", "paused_by", "reason")
_NODE = (*OF_NODE, "queues", "last_seen_at", "stopped_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What ``list`` shows of one kind of rows.

    ``rows`` returns a queryset, or a list if there is only one page; ``row`` returns one of them as
    it is printed. ``columns`` are those of the table; JSON has all values. ``lookups`` are the
    filters by their options, ``takes`` the options that ``rows`` reads. ``key`` is the type of the
    ids at which pages end, and ``key_is`` describes it.
    """

    rows: Callable[[Options], Any]
    columns: Sequence[str]
    row: Callable[[Any], dict[str, Any]] = dict
    lookups: Mapping[str, str] = field(default_factory=dict)
    takes: Sequence[str] = ()
    key: type | None = None
    key_is: str = ""


def _queues(options: Options) -> list[dict[str, Any]]:
    rows = [dataclasses.asdict(depth) for depth in queues.depths(database_now())]
    return [row for row in rows if options["queue"] in (None, row["queue"])]


def _nodes(options: Options) -> Any:
    nodes = models.Node.objects.using(database())
    nodes = nodes.all() if options["all"] else nodes.alive()
    columns = ("id", *_NODE, "version", "started_at", "declared_dead")
    return nodes.order_by("-last_seen_at", "pk").values(*columns)


def _run_row(run: models.WorkflowRun) -> dict[str, Any]:
    return {**facts_of(run), "ended": run.ended, "progress": run.progress}


def _in_words(timetable: Any) -> str:
    try:
        return words(timetable)
    except (AttributeError, LookupError, TypeError, ValueError):
        # A row that was corrupted outside of the ORM is shown all the same.
        return f"not readable: {timetable}"


_LISTINGS = {
    "tasks": _Listing(
        rows=lambda _options: tasks().values(*_TASK, "last_error"),
        columns=_TASK,
        lookups=TASK_LOOKUPS,
        key=uuid.UUID,
        key_is="of tasks is the id of a task (a UUID)",
    ),
    "workflows": _Listing(
        rows=lambda _options: _workflow_runs(),
        row=_run_row,
        columns=(*_RUN, "reason"),
        lookups={option: TASK_LOOKUPS[option] for option in ("status", "name", "tenant", "key")},
        key=uuid.UUID,
        key_is="of workflows is the id of a run (a UUID)",
    ),
    "recurring": _Listing(
        rows=lambda _options: schedules().values(
            *(column for column in _SCHEDULE if column != "schedule"), *_MORE_OF_SCHEDULE
        ),
        row=lambda row: {**row, "schedule": _in_words(row["timetable"])},
        columns=_SCHEDULE,
        lookups={"status": "status", "queue": "queue", "name": "task", "tenant": "tenant__slug"},
        key=uuid.UUID,
        key_is="of recurring tasks is the id of one (a UUID)",
    ),
    "dead-letters": _Listing(
        rows=lambda options: (dead_letters() if options["all"] else dead_letters().open()).values(
            *_OF_LETTER, name=F("task__name"), queue=F("task__queue")
        ),
        row=lambda row: {**row, "state": "open" if row["resolved_at"] is None else "closed"},
        columns=(*_LETTER, "error_message"),
        lookups=LETTER_LOOKUPS,
        takes=("all",),
        key=int,
        key_is="of dead letters is a number",
    ),
    "queues": _Listing(rows=_queues, columns=_QUEUE, takes=("queue",)),
    "nodes": _Listing(rows=_nodes, columns=_NODE, takes=("all",)),
}
_OF_RUNS = [status.value for status in WorkflowStatus]
_OF_SCHEDULES = (RecurringStatus.ACTIVE.value, RecurringStatus.PAUSED.value)


@subcommand(
    argument(
        "kind",
        nargs="?",
        choices=list(_LISTINGS),
        default="tasks",
        help="what to list (default: tasks)",
    ),
    argument(
        "--status",
        choices=[*(status.value for status in Status), "STARTING", *_OF_SCHEDULES],
        help="only in this status",
    ),
    *filters("queue", "name", "tenant", "key", "fingerprint"),
    argument("--limit", type=count, default=50, help="how many rows at most (default: 50)"),
    argument("--after", type=letter_id, help="go on after the last id of the page before"),
    argument("--all", action="store_true", help="closed dead letters and departed nodes too"),
    name="list",
)
def list_rows(options: Options, out: Output) -> int:
    """List tasks, workflows, schedules, dead letters, queues or nodes, newest first.

    Examples:
        list
        list tasks --status FAILED --queue mail --limit 20
        list tasks --status PENDING --after 0193b0e0-0000-7000-8000-000000000000
        list dead-letters --name billing.tasks.charge --format json
        list workflows --status RUNNING --name nightly
        list recurring --status PAUSED
        list queues
        list nodes --all
    """
    kind, status, after = options["kind"], options["status"], options["after"]
    listing = _LISTINGS[kind]
    takes = [*listing.lookups, *(["after"] if listing.key else []), *listing.takes]
    for name in ("status", "queue", "name", "tenant", "key", "fingerprint", "after", "all"):
        if options[name] not in (None, False) and name not in takes:
            refuse(
                f"--{name} does not narrow {kind}; it takes:"
                f" {', '.join(f'--{option}' for option in takes)}."
            )
    if kind == "tasks" and status in _OF_SCHEDULES:
        refuse(f"No task is {status}: a recurring task is. `durable list recurring` shows them.")
    if kind == "tasks" and status == WorkflowStatus.STARTING:
        refuse("No task is STARTING: a workflow run is. `durable list workflows` shows them.")
    if kind == "workflows" and status is not None and status not in _OF_RUNS:
        refuse(f"No workflow run is {status}: give one of {', '.join(_OF_RUNS)}.")
    queryset = listing.rows(options)
    if listing.key is None:
        rows = [listing.row(row) for row in queryset[: options["limit"]]]
        return out.emit(rows, table(listing.columns, rows))
    if after is not None:
        if not isinstance(after, listing.key):
            refuse(f"--after {listing.key_is}.")
        queryset = queryset.filter(pk__lt=after)
    queryset = filtered(queryset, options, listing.lookups).order_by("-pk")
    rows = [
        {name: hidden(value) for name, value in listing.row(row).items()}
        for row in queryset[: options["limit"]]
    ]
    return out.page(rows, listing.columns, options)


# show: a task -------------------------------------------------------------------------------------


_STEP = ("id", "step", "status", "name", "run_at", "reason")
_EDGE = ("waits_for", "step", "status", "type", "outcome", "policy", "comment", "by")
_AUDIT_OF_TASK = ("at", "operation", "actor", "source", "reason")
_TIMELINE = (
    "attempt_number",
    "status",
    "started_at",
    "completed_at",
    "seconds",
    "worker",
    "error_message",
)
_LETTER_OF_TASK = columns_of(
    models.DeadLetter, "tenant", "task", "args", "kwargs", "error_message", "attempts"
)
# What ``graph`` shows of a task.
_IN_GRAPH = (
    "workflow",
    "step",
    "cause",
    "join_count",
    "on_upstream_failure",
    "has_dependents",
    "unresolved_dependencies_count",
)
TASK_TABLES: dict[str, tuple[Callable[[models.Task], list[dict[str, Any]]], tuple[str, ...]]] = {}
"""The rows of optional apps that ``durable show`` prints of a task, by their name in JSON: what
reads them, and the columns of their table.
"""


@subcommand(
    argument(
        "id",
        metavar="ID|NAME",
        help=(
            "the id of a task, which is also the id of its DurableResult; "
            "or of a workflow run; or the name or id of a recurring task"
        ),
    ),
    tenant_of_schedule,
)
def show(options: Options, out: Output) -> int:
    """Show one task, its attempts, what it waits for, and why it did not run; or a workflow run
    with its progress; or a recurring task with its next fires and its ledger.

    Examples:
        show 0193b0e0-0000-7000-8000-000000000000
        show 0193b0e0-0000-7000-8000-000000000000 --format json
        show nightly-report
    """
    text = options["id"]
    try:
        key = uuid.UUID(text)
    except ValueError:
        key = None
    if key is not None:
        if (task := tasks().select_related("tenant").filter(pk=key).first()) is not None:
            return _show_task(task, out)
        if (run := _workflow_runs().filter(pk=key).first()) is not None:
            return _show_run(run, out)
    if (schedule := find_schedule(text, options["tenant"])) is not None:
        return _show_schedule(schedule, out)
    if key is None:
        refuse(f"{text!r} is not the id of a task (a UUID), and no recurring task has that name.")
    return refuse(
        f"There is no task and no workflow run {text}: it never was, or its retention is over."
    )


def _show_task(task: models.Task, out: Output) -> int:
    """Show the row, its attempts and dead letters, with secrets masked."""
    why = [sentence.text for sentence in sentences(task)]
    facts = facts_of(task, *_IN_GRAPH)
    facts |= masked_arguments(task.name, task.args, task.kwargs)
    logs = [
        {**facts_of(log, "tenant"), "seconds": log.duration}
        for log in task.executions.using(task._state.db).order_by("pk")
    ]
    # Its workflow, its edges and gates, the tasks that wait for it, and the cause of its end.
    edges = models.TaskDependency.objects.using(database())
    above = list(edges.above([task.pk]).order_by("pk"))
    upstreams = tasks().in_bulk([edge.depends_on_id for edge in above if edge.depends_on_id])
    below = edges.below([task.pk]).order_by() if task.has_dependents else edges.none()
    cause_step = (
        None if task.cause is None else tasks().filter(pk=task.cause).values(*_STEP).first()
    )
    graph: dict[str, Any] = {
        "workflow": task.workflow_id,
        "step": task.step,
        "needs": task.unresolved_dependencies_count,
        "join": task.join_count or "ALL",
        "on_upstream_failure": task.on_upstream_failure,
        "waits_for": [_edge(edge, upstreams.get(edge.depends_on_id)) for edge in above],
        "dependents": dict(Counter(below.values_list("task__status", flat=True))),
        "cause": cause_step
        or (None if task.cause is None else {"id": task.cause, "status": "DELETED"}),
    }
    optional = {name: read(task) for name, (read, _columns) in TASK_TABLES.items()}
    audit_entries = hidden_rows(
        {name: getattr(entry, name) for name in _AUDIT_OF_TASK} for entry in of_task(task)
    )
    dead_letters = task.dead_letters.using(task._state.db).order_by("pk")
    letters = hidden_rows(dead_letters.values(*_LETTER_OF_TASK))
    timeline = [
        {**log, "seconds": None if log["seconds"] is None else round(log["seconds"], 3)}
        for log in logs
    ]
    if task.status == Status.RUNNING:
        running = {"attempt_number": task.attempts, "status": "RUNNING", "worker": task.node}
        running |= {"started_at": task.started_at}
        timeline.append(dict.fromkeys(_TIMELINE) | running)
    lines = [f"why: {why[0]}", *(f"     {sentence}" for sentence in why[1:]), ""]
    graph_facts, cause = {}, graph["cause"]
    if graph["workflow"] is not None:
        graph_facts = {"workflow": graph["workflow"], "step": graph["step"]}
    if cause is not None:
        cause_name = cause.get("step") or cause.get("name") or ""
        graph_facts["cause"] = f"{cause_name} {cause['id']}, {cause['status']}"
    graph_lines = details(graph_facts)
    if graph["waits_for"]:
        head = f"waits for (join {graph['join']}, needs {graph['needs']} more):"
        graph_lines += ["", head, table(_EDGE, graph["waits_for"])]
    if graph["dependents"]:
        graph_lines += ["", f"waited for by: {_counted(graph['dependents'])}"]
    lines += [*details(facts), *graph_lines]
    lines += ["", table(_TIMELINE, timeline, "no attempt yet")]
    for name, (_read, columns) in TASK_TABLES.items():
        lines += ["", table(columns, optional[name])] if optional[name] else []
    lines += ["", table(_LETTER_OF_TASK, letters)] if letters else []
    lines += ["", table(_AUDIT_OF_TASK, audit_entries)] if audit_entries else []
    data = {"why": why[0], "sentences": why, **facts, "graph": graph, "executions": logs}
    data |= {**optional, "audit": audit_entries, "dead_letters": letters}
    return out.emit(data, "\n".join(lines))


def _edge(edge: models.TaskDependency, upstream: models.Task | None) -> dict[str, Any]:
    is_gate = edge.depends_on_id is None
    status = "DELETED" if upstream is None else upstream.status
    return {
        "waits_for": edge.depends_on_id or edge.gate,
        "gate": edge.gate,
        "step": None if upstream is None else upstream.step or upstream.name,
        "status": None if is_gate else status,
        "type": None if is_gate else edge.dependency_type,
        "outcome": edge.outcome or "waiting",
        "met": edge.met,
        "resolved_at": edge.resolved_at,
        "policy": edge.on_upstream_failure,
        "comment": hidden(edge.comment),
        "placed_by": edge.placed_by,
        "resolved_by": edge.resolved_by,
        "by": edge.resolved_by or edge.placed_by,
    }


def _counted(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))


# show: a workflow run, a schedule -----------------------------------------------------------------


# Tasks of a run that are shown for each status, so that a run of thousands fits the screen.
_FEW_STEPS = 20
# Next fires and ledger entries of a schedule: about what one screen holds beside its columns.
_FEW_FIRES, _FEW_ENTRIES = 5, 10


def _show_run(run: models.WorkflowRun, out: Output) -> int:
    """Show one run: its progress, its inner runs, the status of its tasks, and the tasks that fail
    or delay it.
    """

    def steps(statuses: Any) -> list[dict[str, Any]]:
        rows = tasks().of_workflow(run).filter(status__in=statuses).order_by("pk").values(*_STEP)
        return [{**row, "reason": hidden(row["reason"])} for row in rows[:_FEW_STEPS]]

    facts = _run_row(run)
    inside = [_run_row(inner) for inner in _workflow_runs().filter(parent=run.pk).order_by("pk")]
    counts = tasks().of_workflow(run).order_by().values_list("status").annotate(number=Count("pk"))
    statuses = dict(counts)
    failed, opened = steps({Status.FAILED, Status.EXPIRED}), steps(OPEN)
    lines = [f"{run.name}: {run.status}, {run.ended} of {run.total} tasks have ended"]
    lines += details(facts, "ended", "progress")
    lines.append(f"{'tasks':>20}  {_counted(statuses)}")
    lines += ["", f"failed, the first {_FEW_STEPS}:", table(_STEP, failed)] if failed else []
    lines += ["", f"open, the first {_FEW_STEPS}:", table(_STEP, opened)] if opened else []
    lines += ["", "runs inside:", table((*_RUN, "reason"), inside)] if inside else []
    facts |= {"inside": inside, "statuses": statuses, "open_tasks": opened, "failed_tasks": failed}
    return out.emit(facts, "\n".join(lines))


_FIRE = ("nominal", "effective", "remarks")
_OVERRIDE = ("fire_time", "action", "move_to", "reason", "by")
_OF_ENTRY = columns_of(models.OccurrenceRecord, "id", "tenant", "recurring_task")
_LEDGER = ("fire_time", "last_fire_time", "count", "outcome", "task_id", "reason")


def _show_schedule(row: models.RecurringTask, out: Output) -> int:
    """Show the row, its next fires, its overrides and the last entries of its ledger."""
    facts = {**facts_of(row, "declaration"), "schedule": _in_words(row.timetable)}
    facts |= masked_arguments(row.task, row.args, row.kwargs)
    fires, facts["problem"] = [], ""
    try:
        upcoming = explain.upcoming(row, _FEW_FIRES, database_now())
        fires = [dataclasses.asdict(fire) for fire in upcoming]
    except DurableTasksError as broken:
        facts["problem"] = str(broken)
    overrides = [dataclasses.asdict(override) for override in overrides_of(row)]
    entries = list(_ledger_of(row)[:_FEW_ENTRIES])
    is_active = row.status == RecurringStatus.ACTIVE
    lines = details(facts, "timetable")
    lines += ["", f"next fires{'' if is_active else ', were it resumed'}:", table(_FIRE, fires)]
    lines += ["", "overrides:", table(_OVERRIDE, overrides)] if overrides else []
    lines += ["", "last ledger entries:", table(_LEDGER, entries)]
    facts |= {"overrides": overrides, "next_fires": fires, "ledger": entries}
    return out.emit(facts, "\n".join(lines))


def _ledger_of(row: models.RecurringTask) -> Any:
    """Return the ledger of a recurring task, the newest entry first."""
    entries = models.OccurrenceRecord.objects.using(database()).filter(recurring_task=row.pk)
    return entries.order_by("-fire_time", "-pk").values(*_OF_ENTRY)


# graph, ledger, audit -----------------------------------------------------------------------------


@subcommand(
    argument("id", metavar="ID", type=task_id, help="the id of a workflow run, or of a task"),
    argument(
        "--output", metavar="FILE", type=Path, help="write the diagram to this file, not to stdout"
    ),
    argument(
        "--limit",
        type=count,
        default=diagrams.NEAR,
        help=(
            "of a task: how many connected tasks at most, the nearest first (default:"
            f" {diagrams.NEAR}); at most {diagrams.FAR} dependencies away"
        ),
    ),
    formats=FILE_FORMATS,
)
def graph(options: Options, out: Output) -> int:
    """Draw a workflow run, or what is connected with a task, as text, Mermaid, SVG or JSON.

    Examples:
        graph 0193b0e0-0000-7000-8000-000000000000
        graph 0193b0e0-0000-7000-8000-000000000000 --format svg --output run.svg
        graph 0193b0e0-0000-7000-8000-000000000000 --format mermaid --limit 50
        graph 0193b0e0-0000-7000-8000-000000000000 --format json
    """
    key, output = options["id"], options["output"]
    if (task := tasks().filter(pk=key).first()) is not None:
        diagram = diagrams.around(task, options["limit"])
    elif (run := _workflow_runs().filter(pk=key).first()) is not None:
        diagram = diagrams.of_run(run)
    else:
        refuse(
            f"There is neither a workflow run nor a task {key}: `durable list workflows` shows the"
            " runs."
        )
    drawn = draw(diagram, options["format"])
    if output is None:
        out.stdout.write(drawn)
        return OK
    try:
        output.write_text(drawn, encoding="utf-8")
    except OSError as error:
        refuse(f"--output {output} cannot be written: {error.strerror}.")
    out.note(f"{output}: {len(diagram.nodes)} tasks, {len(diagram.edges)} dependencies")
    return OK


@subcommand(
    *NAMED,
    argument(
        "--outcome",
        choices=[outcome.value for outcome in FireOutcome],
        help="only entries with this outcome",
    ),
    argument(
        "--before", metavar="INSTANT", type=moment, help="only fire times before this instant"
    ),
    argument("--limit", type=count, default=50, help="maximum number of entries (default: 50)"),
)
def ledger(options: Options, out: Output) -> int:
    """List what became of the fire times of a recurring task, the newest first.

    Examples:
        ledger nightly-report
        ledger nightly-report --outcome MISSED --limit 20 --format json
    """
    lookups = {"outcome": "outcome", "before": "fire_time__lt"}
    rows = list(filtered(_ledger_of(named(options)), options, lookups)[: options["limit"]])
    return out.page(
        rows, _LEDGER, options, nothing="no ledger entries", after="--before", key="fire_time"
    )


_AUDIT = ("id", "at", "operation", "object_type", "object_id", "count", "actor", "source", "reason")


@subcommand(
    argument("--operation", help="Only this operation, such as tasks.cancel."),
    argument("--actor", help="Only this user, key or program."),
    argument("--object", help="Only entries about the object with this id or name."),
    argument("--tenant", help="Only this tenant (its slug)."),
    argument("--since", type=moment, help="Only entries from this instant on, ISO 8601."),
    argument("--until", type=moment, help="Only entries before this instant, ISO 8601."),
    argument("--limit", type=count, default=50, help="How many entries. Default: 50."),
    argument("--after", type=count, help="Continue after the last id of a page."),
)
def audit(options: Options, out: Output) -> int:
    """List who changed what, when, why and from where.

    Examples:
        audit
        audit --operation tasks.cancel --limit 20
        audit --actor ada --format json
        audit --since 2026-03-07T00:00:00Z --until 2026-03-08T00:00:00Z
        audit --object 0193b0e0-0000-7000-8000-000000000000
        audit --object nightly-report
    """
    lookups = {
        "operation": "operation",
        "actor": "actor",
        "tenant": "tenant__slug",
        "since": "at__gte",
        "until": "at__lt",
        "after": "pk__lt",
    }
    entries = filtered(models.AuditEntry.objects.using(database()), options, lookups)
    if options["object"] is not None:
        entries = entries.filter(about(options["object"]) | in_sets(options["object"]))
    columns = columns_of(models.AuditEntry, "tenant", "object_ids")
    rows = list(entries.order_by("-pk").values(*columns)[: options["limit"]])
    return out.page(rows, _AUDIT, options, nothing="there are no such entries")
