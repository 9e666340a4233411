"""How each operation of the registry is performed: in Python, and by the interfaces offering it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_durable_tasks import Workflow
from django_durable_tasks.cluster import queues
from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.limits import operator_limits
from django_durable_tasks.models import (
    AuditEntry,
    Calendar,
    DeadLetter,
    QueueControl,
    RecurringTask,
    Task,
    TaskDependency,
    Tenant,
)
from django_durable_tasks.operations import OPERATIONS, Operation
from django_durable_tasks.workflows import operations as graph_operations
from tests.database.admin.site import act
from tests.database.admin.workflow_actions import choose, do
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all
from tests.database.recurring.schedules import START, a_schedule, at
from tests.factories import a_task
from tests.project.tasks import add, noop

WHO: dict[str, Any] = {"by": "ada", "reason": "a test"}
_LATER = timedelta(days=1)
HOOK: dict[str, Any] = {
    "delivery_type": "HTTP_WEBHOOK",
    "delivery_config": {"url": "https://example.com/hook"},
}
Page = Callable[[Client, Any, Operation, str], Any]
"""Performs the operation for a reason in the admin, on the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation on the object that ``make`` creates.

    ``values`` are its fields in Python. ``command``: the words of its subcommand; ``api``: method
    and path. Both are formats of ``key``, the primary key or the name of the object. ``body`` is
    the JSON of the API.
    """

    make: Callable[[], Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    api: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    page: Page | None = None


def key_of(found: Any) -> str:
    """Return the name of the object in addresses and on the command line."""
    return str(getattr(found, "pk", found))


def perform(key: str, found: Any, **more: Any) -> Any:
    """Perform the operation in Python."""
    operation, values = OPERATIONS[key], {**CASES[key].values, **more}
    if operation.target.is_queryset:
        found = type(found).objects.filter(pk=found.pk)
    return operation.perform(found, **{**WHO, **values})


def entries_of(act_: Callable[[], Any]) -> list[AuditEntry]:
    """Call the function and return the entries that it has written, the oldest first."""
    newest = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    act_()
    return list(AuditEntry.objects.filter(pk__gt=newest).order_by("pk"))


def _chain(*, approval: bool = False) -> Any:
    wf = Workflow("audited")
    first = wf.add(noop, step="first")
    wf.add(noop, step="second", after=first, **({"approval": "a test"} if approval else {}))
    return wf.start()


def _failed_chain() -> Any:
    run = _chain()
    fail(of(run, "first"))
    resolve_all()
    return run


def _daily() -> RecurringTask:
    return a_schedule("audited", cron="0 9 * * *")


def _paused() -> RecurringTask:
    row = _daily()
    row.pause("before the test")
    return row


def _with_override() -> RecurringTask:
    row = _daily()
    row.override(_NEXT_FIRE, "SKIP")
    return row


_NEXT_FIRE = (timezone.now() + 2 * _LATER).replace(hour=9, minute=0, second=0, microsecond=0)
_RUN_AT = (timezone.now() + _LATER).replace(microsecond=0)


def _a_letter() -> DeadLetter:
    found: DeadLetter = a_task("FAILED").dead_letters.get()
    return found


def _a_key() -> ApiKey:
    return access.create_key(Tenant.objects.get(), "audited", "read").row


def _with_staff() -> Tenant:
    User.objects.create_user("audited", is_staff=True)
    found: Tenant = Tenant.objects.get()
    return found


def _with_assigned_staff() -> Tenant:
    tenant = _with_staff()
    access.assign_staff(tenant, "audited")
    return tenant


def _a_notification_setting() -> Any:
    return deliveries.create_setting(name="audited", **HOOK)


def _paused_queue() -> str:
    QueueControl.objects.pause("audited")
    return "audited"


def _queue() -> str:
    queues.pause("audited")
    queues.resume("audited")
    return "audited"


def _limit() -> str:
    operator_limits.set_limit("queue:audited", max_concurrency=3)
    return "queue:audited"


def _held() -> Task:
    row = a_task()
    graph_operations.hold(row)
    return row


def _action(client: Client, row: Any, operation: Operation, reason: str) -> Any:
    return act(client, operation.name, row, reason=reason)


def _at(name: str, **fields: str) -> Page:
    """Post the fields to the page of this URL, which has the object's key and the operation."""

    def page(client: Client, row: Any, operation: Operation, reason: str) -> Any:
        address = reverse(f"admin:django_durable_tasks_{name}", args=[row.pk, operation.name])
        return client.post(address, {**fields, "reason": reason})

    return page


def _schedule(**fields: str) -> Page:
    return _at("recurringtask_do", **fields)


def _graph(client: Client, row: Any, operation: Operation, reason: str) -> Any:
    mode = str(operation.modes[0].name) if operation.modes else ""
    return do(client, row, operation.name, mode, reason=reason)


def _chosen(client: Client, row: Any, operation: Operation, reason: str) -> Any:
    return choose(client, operation.name, row, _do="1", reason=reason)


def _queue_page(client: Client, name: str, operation: Operation, reason: str) -> Any:
    address = reverse(f"admin:django_durable_tasks_queuecontrol_{operation.name}")
    return client.post(address, {"queue": name, "reason": reason})


def _edited(client: Client, row: Task, _operation: Operation, reason: str) -> Any:
    address = reverse("admin:django_durable_tasks_task_replay", args=[row.pk])
    page = client.get(address)
    carried = {"opened": page.context["form"]["opened"].value()} if page.status_code == 200 else {}
    return client.post(address, {"args": "[1, 2]", "kwargs": "{}", "reason": reason, **carried})


def _added_edge(client: Client, row: Task, _operation: Operation, reason: str) -> Any:
    upstream = Task.objects.get(key="upstream")
    given = {"task": row.pk, "upstream": upstream.pk, "type": "MUST_SUCCEED", "policy": ""}
    address = reverse("admin:django_durable_tasks_taskdependency_add")
    return client.post(address, {**given, "_do": "1", "reason": reason})


def _removed_edge(client: Client, row: Task, _operation: Operation, reason: str) -> Any:
    edge = TaskDependency.objects.get(task=row.pk)
    address = reverse("admin:django_durable_tasks_graph_unlink", args=[edge.pk])
    return client.post(address, {"_do": "1", "seen": "", "reason": reason})


class _Upstream(Mapping[str, Any]):
    """Values with the upstream task, which exists only when the operation is performed."""

    def __init__(self, **others: Any) -> None:
        self.others = others

    def __iter__(self) -> Any:
        return iter({"upstream": None, **self.others})

    def __len__(self) -> int:
        return 1 + len(self.others)

    def __getitem__(self, name: str) -> Any:
        return Task.objects.get(key="upstream") if name == "upstream" else self.others[name]


def _two() -> Task:
    a_task(key="upstream")
    return a_task()


def _linked() -> Task:
    row = _two()
    graph_operations.add_edge(row, Task.objects.get(key="upstream"))
    return row


def _second(**more: Any) -> Callable[[], Task]:
    return lambda: of(_chain(**more), "second")


CASES: dict[str, Case] = {
    "tasks.cancel": Case(
        make=a_task, command="cancel {key}", api="POST /tasks/{key}/cancel", page=_action
    ),
    "tasks.retry": Case(
        make=lambda: a_task(failures=1, due_at=timezone.now() + _LATER),
        command="retry {key}",
        api="POST /tasks/{key}/retry",
        page=_action,
    ),
    "tasks.replay": Case(
        make=lambda: a_task("FAILED"),
        command="replay {key}",
        api="POST /tasks/{key}/replay",
        page=_action,
    ),
    "tasks.replay_edited": Case(
        make=lambda: a_task("FAILED", name=add.name, args=[1, "x"]),
        values={"args": [1, 2], "kwargs": None},
        command="replay {key} --args '[1,2]'",
        api="POST /tasks/{key}/replay",
        body={"target_config": {"args": [1, 2]}},
        page=_edited,
    ),
    "tasks.force_complete": Case(
        make=lambda: a_task("FAILED"), api="POST /tasks/{key}/force-complete", page=_action
    ),
    "tasks.reschedule": Case(
        make=a_task,
        values={"run_at": _RUN_AT},
        command=f"reschedule {{key}} --run-at {_RUN_AT.isoformat()}",
        api="POST /tasks/{key}/reschedule",
        body={"run_at": _RUN_AT.isoformat()},
    ),
    "tasks.edit": Case(
        make=a_task,
        values={"priority": 7},
        command="edit {key} --priority 7",
        api="PATCH /tasks/{key}",
        body={"priority": 7},
    ),
    "dead_letters.replay": Case(
        make=_a_letter, api="POST /dead-letters/{key}/replay", page=_action
    ),
    "dead_letters.discard": Case(
        make=_a_letter,
        command="discard {key}",
        api="POST /dead-letters/{key}/discard",
        page=_action,
    ),
    "workflow_run.cancel": Case(
        make=_chain,
        command="cancel --workflow {key} --yes",
        api="POST /workflows/{key}/cancel",
        page=_graph,
    ),
    "workflow_run.replay": Case(
        make=_failed_chain,
        values={"mode": "FAILED"},
        command="replay --workflow {key} --yes",
        api="POST /workflows/{key}/replay",
        page=_graph,
    ),
    "task.replay_from": Case(
        make=lambda: of(_failed_chain(), "first"),
        command="replay --from {key} --yes",
        api="POST /tasks/{key}/replay-from",
        page=_graph,
    ),
    "task.cancel_branch": Case(
        make=lambda: of(_chain(), "first"),
        command="cancel --branch {key} --yes",
        api="POST /tasks/{key}/cancel-branch",
        page=_graph,
    ),
    "tasks.force_run": Case(
        make=_second(), command="force-run {key}", api="POST /tasks/{key}/force-run", page=_chosen
    ),
    "tasks.force_complete_in_graph": Case(
        make=lambda: of(_chain(), "first"), command="force-complete {key}", page=_chosen
    ),
    "task.approve": Case(
        make=_second(approval=True),
        command="approve {key}",
        api="POST /tasks/{key}/approve",
        page=_graph,
    ),
    "task.reject": Case(
        make=_second(approval=True),
        command="reject {key}",
        api="POST /tasks/{key}/reject",
        page=_graph,
    ),
    "task.hold": Case(make=a_task, command="hold {key}", api="POST /tasks/{key}/hold", page=_graph),
    "task.unhold": Case(
        make=_held, command="unhold {key}", api="POST /tasks/{key}/unhold", page=_graph
    ),
    "dependency.add": Case(make=_two, values=_Upstream(type="MUST_SUCCEED"), page=_added_edge),
    "dependency.remove": Case(make=_linked, values=_Upstream(), page=_removed_edge),
    "queue.pause": Case(
        make=_queue, command="pause {key}", api="POST /queues/{key}/pause", page=_queue_page
    ),
    "queue.resume": Case(
        make=_paused_queue,
        command="resume {key}",
        api="POST /queues/{key}/resume",
        page=_queue_page,
    ),
    "limit.set": Case(
        make=lambda: "queue:audited",
        values={"max_concurrency": 3},
        command="limit set {key} --max-concurrency 3",
    ),
    "limit.remove": Case(make=_limit, command="limit remove {key}"),
    "schedule.pause": Case(
        make=_daily,
        values={"until": _RUN_AT},
        command=f"pause --recurring {{key}} --until {_RUN_AT.isoformat()}",
        api="POST /recurring-tasks/{key}/pause",
        body={"until": _RUN_AT.isoformat()},
        page=_schedule(until=_RUN_AT.isoformat()),
    ),
    "schedule.resume": Case(
        make=_paused,
        command="resume --recurring {key}",
        api="POST /recurring-tasks/{key}/resume",
        page=_schedule(pace=""),
    ),
    "schedule.snooze": Case(
        make=_daily,
        values={"until": _RUN_AT},
        command=f"snooze {{key}} {_RUN_AT.isoformat()}",
        api="POST /recurring-tasks/{key}/snooze",
        body={"until": _RUN_AT.isoformat()},
        page=_schedule(until=_RUN_AT.isoformat()),
    ),
    "schedule.run_now": Case(
        make=_daily,
        values={"request_id": "once"},
        command="run-now {key} --request-id once",
        api="POST /recurring-tasks/{key}/trigger-now",
        body={"request_id": "once"},
        page=_schedule(request_id="once"),
    ),
    "schedule.override": Case(
        make=_daily,
        values={"fire_time": _NEXT_FIRE, "action": "SKIP"},
        command=f"override {{key}} {_NEXT_FIRE.isoformat()} --skip",
        api="POST /recurring-tasks/{key}/override",
        body={"fire_time": _NEXT_FIRE.isoformat(), "action": "SKIP"},
        page=_schedule(fire_time=_NEXT_FIRE.isoformat(), action="SKIP", move_to=""),
    ),
    "schedule.remove_override": Case(
        make=_with_override,
        values={"fire_time": _NEXT_FIRE},
        command=f"override {{key}} {_NEXT_FIRE.isoformat()} --remove",
        api="POST /recurring-tasks/{key}/remove-override",
        body={"fire_time": _NEXT_FIRE.isoformat()},
        page=_schedule(fire_time=_NEXT_FIRE.isoformat()),
    ),
    "schedule.backfill": Case(
        make=_daily,
        values={"start": START, "end": at(days=2)},
        command=f"backfill {{key}} {START.isoformat()} {at(days=2).isoformat()}",
        api="POST /recurring-tasks/{key}/backfill",
        body={"start": START.isoformat(), "end": at(days=2).isoformat()},
        page=_schedule(
            start=START.isoformat(),
            end=at(days=2).isoformat(),
            reprocess="NONE",
            concurrency="1",
            order="OLDEST",
            limit="1000",
        ),
    ),
    "schedule.cancel": Case(
        make=_daily,
        command="end-schedule {key}",
        api="POST /recurring-tasks/{key}/cancel",
        page=_schedule(),
    ),
    "calendar.save": Case(make=lambda: "office", values={"working_days": [1, 2]}),
    "calendar.delete": Case(make=lambda: Calendar.objects.upsert("office"), page=_action),
    "tenant.create_api_key": Case(
        make=Tenant.objects.get,
        values={"name": "audited", "scopes": "read"},
        command="api-key create --name audited --scopes read",
    ),
    "api_keys.revoke": Case(make=_a_key, page=_action),
    "tenant.set_quotas": Case(
        make=Tenant.objects.get,
        values={"requests": "60/m"},
        command="quota default --requests 60/m",
    ),
    "tenant.assign_staff": Case(
        make=_with_staff,
        values={"username": "audited"},
        command="staff assign --tenant default --username audited",
    ),
    "tenant.unassign_staff": Case(
        make=_with_assigned_staff,
        values={"username": "audited"},
        command="staff unassign --tenant default --username audited",
    ),
    "tenant.create_notification_setting": Case(
        make=Tenant.objects.get,
        values={"name": "audited", **HOOK},
        api="POST /notification-settings",
        body={"name": "audited", **HOOK},
    ),
    "notification_setting.change": Case(
        make=_a_notification_setting,
        values={"on_retry": True},
        api="PATCH /notification-settings/{key}",
        body={"on_retry": True},
    ),
    "notification_setting.delete": Case(make=_a_notification_setting, page=_action),
    "notification_setting.test": Case(
        make=_a_notification_setting,
        command="notify test audited --wait 0.1",
        api="POST /notification-settings/{key}/test",
        page=_action,
    ),
    "installation.republish": Case(make=Task.objects.all, command="republish --all"),
    "installation.prune": Case(make=lambda: None, command="prune"),
    "installation.import_beat": Case(
        make=lambda: "beat",
        values={"task": noop.name, "options": {"interval": 60, "queue": "test"}},
    ),
    "installation.rotate_keys": Case(make=lambda: None, command="rotate-keys"),
    "installation.repair": Case(make=list),
}
"""All operations but ``installation.sync``, whose entries are about each of its schedules.

What an interface offers in the form of a whole object, or together with other operations, is
tested with that form: a case without ``page``, ``api`` or ``command``.
"""
