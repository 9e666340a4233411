"""Performs each operation of the registry on an object that it changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from django_durable_tasks import Workflow
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.models import AuditEntry, Calendar, DeadLetter, QueueControl, Task, Tenant
from django_durable_tasks.models.tenants import ApiKey
from django_durable_tasks.operations.registry import OPERATIONS
from django_durable_tasks.tenants import access
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all
from tests.database.recurring.schedules import START, a_schedule, at
from tests.factories import a_task
from tests.project.tasks import add, noop

WHO: dict[str, Any] = {"by": "ada", "reason": "a test"}
_LATER = timedelta(days=1)


def _tasks(row: Task) -> Any:
    return Task.objects.filter(pk=row.pk)


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


def _daily() -> Any:
    return a_schedule("audited", cron="0 9 * * *")


def _paused() -> Any:
    row = _daily()
    row.pause("before the test")
    return row


def _with_override() -> Any:
    row, when = _daily(), _next_fire()
    row.override(when, "SKIP")
    return row


def _next_fire() -> Any:
    soon = timezone.now() + 2 * _LATER
    return soon.replace(hour=9, minute=0, second=0, microsecond=0)


def _a_key() -> Any:
    access.create_key(Tenant.objects.get(), "audited", ["read"], now=timezone.now())
    return ApiKey.objects.all()


def _with_staff() -> Tenant:
    User.objects.create_user("audited", is_staff=True)
    found: Tenant = Tenant.objects.get()
    return found


def _with_assigned_staff() -> Tenant:
    tenant = _with_staff()
    access.assign_staff(tenant, "audited")
    return tenant


def _a_notification_setting() -> Any:
    config = {"url": "https://example.com/hook"}
    values: dict[str, Any] = {"delivery_type": "HTTP_WEBHOOK", "delivery_config": config}
    return deliveries.create_setting(name="audited", **values)


def _paused_queue() -> str:
    QueueControl.objects.pause("audited")
    return "audited"


def _limit() -> str:
    OPERATIONS["limit.set"].perform("queue:audited", by="", reason="", max_concurrency=3)
    return "queue:audited"


def _edge(*, linked: bool) -> tuple[Task, Task]:
    first, second = a_task(), a_task()
    if linked:
        OPERATIONS["dependency.add"].perform(
            second, by="", reason="", upstream=first, type="MUST_SUCCEED", policy=None
        )
    return first, second


def _on(subject: Callable[[], Any], **given: Any) -> Callable[[str], list[AuditEntry]]:
    def perform(key: str) -> list[AuditEntry]:
        found, more = subject(), dict(given)
        if isinstance(found, tuple):
            more["upstream"], found = found
        return entries_of(lambda: OPERATIONS[key].perform(found, **WHO, **more))

    return perform


def entries_of(act: Callable[[], Any]) -> list[AuditEntry]:
    """Call ``act`` and return the entries that it has written, the oldest first."""
    newest = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    act()
    return list(AuditEntry.objects.filter(pk__gt=newest).order_by("pk"))


SCENARIOS: dict[str, Callable[[str], list[AuditEntry]]] = {
    "tasks.cancel": _on(lambda: _tasks(a_task())),
    "tasks.retry": _on(lambda: _tasks(a_task(failures=1, due_at=timezone.now() + _LATER))),
    "tasks.replay": _on(lambda: _tasks(a_task("FAILED"))),
    "tasks.replay_edited": _on(
        lambda: _tasks(a_task("FAILED", name=add.name, args=[1, "x"])), args=[1, 2], kwargs=None
    ),
    "tasks.force_complete": _on(lambda: _tasks(a_task("FAILED"))),
    "tasks.reschedule": _on(lambda: _tasks(a_task()), run_at=timezone.now() + _LATER),
    "tasks.edit": _on(lambda: _tasks(a_task()), priority=7),
    "dead_letters.replay": _on(lambda: (a_task("FAILED"), DeadLetter.objects.all())[1]),
    "dead_letters.discard": _on(lambda: (a_task("FAILED"), DeadLetter.objects.all())[1]),
    "workflow_run.cancel": _on(_chain),
    "workflow_run.replay": _on(_failed_chain, mode="FAILED"),
    "task.replay_from": _on(lambda: of(_failed_chain(), "first")),
    "task.cancel_branch": _on(lambda: of(_chain(), "first")),
    "tasks.force_run": _on(lambda: _tasks(of(_chain(), "second"))),
    "tasks.force_complete_in_graph": _on(lambda: _tasks(of(_chain(), "first"))),
    "task.approve": _on(lambda: of(_chain(approval=True), "second")),
    "task.reject": _on(lambda: of(_chain(approval=True), "second")),
    "task.hold": _on(a_task),
    "task.unhold": _on(lambda: _held(a_task())),
    "dependency.add": _on(lambda: _edge(linked=False), type="MUST_SUCCEED", policy=None),
    "dependency.remove": _on(lambda: _edge(linked=True)),
    "queue.pause": _on(lambda: "audited"),
    "queue.resume": _on(_paused_queue),
    "limit.set": _on(lambda: "queue:audited", max_concurrency=3),
    "limit.remove": _on(_limit),
    "schedule.pause": _on(_daily),
    "schedule.resume": _on(_paused),
    "schedule.snooze": _on(_daily, until=timezone.now() + _LATER),
    "schedule.run_now": _on(_daily),
    "schedule.override": _on(_daily, fire_time=_next_fire(), action="SKIP"),
    "schedule.remove_override": _on(_with_override, fire_time=_next_fire()),
    "schedule.backfill": _on(_daily, start=START, end=at(days=2)),
    "schedule.cancel": _on(_daily),
    "calendar.save": _on(lambda: "office", working_days=[1, 2]),
    "calendar.delete": _on(lambda: Calendar.objects.upsert("office")),
    "tenant.create_api_key": _on(Tenant.objects.get, name="audited", scopes="read"),
    "api_keys.revoke": _on(_a_key),
    "tenant.set_quotas": _on(Tenant.objects.get, requests="60/m"),
    "tenant.assign_staff": _on(_with_staff, username="audited"),
    "tenant.unassign_staff": _on(_with_assigned_staff, username="audited"),
    "tenant.create_notification_setting": _on(
        Tenant.objects.get,
        name="audited",
        delivery_type="HTTP_WEBHOOK",
        delivery_config={"url": "https://example.com/hook"},
    ),
    "notification_setting.change": _on(_a_notification_setting, on_retry=True),
    "notification_setting.delete": _on(_a_notification_setting),
    "notification_setting.test": _on(_a_notification_setting),
    "installation.republish": _on(Task.objects.all),
    "installation.prune": _on(lambda: None),
    "installation.import_beat": _on(
        lambda: "beat", task=noop.name, options={"interval": 60, "queue": "test"}
    ),
    "installation.rotate_keys": _on(lambda: None),
    "installation.repair": _on(list),
}


def _held(row: Task) -> Task:
    OPERATIONS["task.hold"].perform(row, by="", reason="")
    return row
