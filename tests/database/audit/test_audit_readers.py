"""Audit entries in the admin, on the command line and in the API, and their retention."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_durable_tasks import audit
from django_durable_tasks.models import AuditEntry, QueueControl, Task
from tests.database.admin.site import list_of, operator, page_of, staff
from tests.database.api.client import ADD, SETTINGS, ApiClient, a_client, a_tenant, call
from tests.database.commands.durable_command import json_of
from tests.factories import a_task, many_tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(settings: Any) -> None:
    """Open the API."""
    settings.DURABLE_TASKS = dict(SETTINGS)


def _newest() -> AuditEntry:
    found = AuditEntry.objects.order_by("-pk").first()
    assert found is not None
    return found


def test_a_changed_tenant_has_an_entry() -> None:
    ann, tenant = operator("ann"), a_tenant("acme")
    page = ann.get(page_of(tenant))
    opened = page.context["adminform"].form.initial["opened"]
    answer = ann.post(page_of(tenant), {"slug": "acme", "name": "New", "opened": opened})
    assert answer.status_code == 302
    entry = _newest()
    assert (entry.operation, entry.actor, entry.tenant_id) == ("tenant.save", "ann", tenant.pk)
    assert (entry.before, entry.after) == ({"name": "Acme"}, {"name": "New"})


def test_the_command_selects_entries_by_time() -> None:
    now = timezone.now()
    for queue, hours in (("old", 30), ("edge", 20), ("new", 1)):
        QueueControl.objects.pause(queue, by="ada", reason="maintenance")
        AuditEntry.objects.unguarded().filter(object_id=queue).update(
            at=now - timedelta(hours=hours)
        )

    def shown(*options: str) -> set[str]:
        return {one["object_id"] for one in json_of("audit", *options)}

    edge = (now - timedelta(hours=20)).isoformat()
    assert shown("--since", edge) == {"edge", "new"}
    assert shown("--until", edge) == {"old"}
    assert shown("--since", edge, "--until", now.isoformat(), "--actor", "bob") == set()


def test_the_admin_filters_entries_by_age(ann: Client) -> None:
    for queue, hours in (("old-queue", 30), ("new-queue", 1)):
        QueueControl.objects.pause(queue, by="ada", reason="maintenance")
        AuditEntry.objects.unguarded().filter(object_id=queue).update(
            at=timezone.now() - timedelta(hours=hours)
        )
    for span, names in (("day", {"new-queue"}), ("week", {"old-queue", "new-queue"})):
        rows = ann.get(list_of("auditentry") + f"?created={span}").context["cl"].queryset
        assert {row.object_id for row in rows} == names


def test_the_page_of_a_task_shows_what_was_done_with_it(ann: Client) -> None:
    row, other = a_task("FAILED"), a_task("FAILED")
    Task.objects.filter(pk=row.pk).replay(by="ada", reason="first")
    both = Task.objects.filter(pk__in=[row.pk, other.pk])
    both.cancel(by="bob", reason="second")
    text = ann.get(page_of(row)).content.decode()
    for word in ("tasks.replay", "ada", "first", "tasks.cancel", "bob", "second"):
        assert word in text
    viewer = staff("view_task")
    assert "tasks.replay" not in viewer.get(page_of(row)).content.decode()


def test_the_list_is_read_only_and_searched_by_user_object_and_operation(ann: Client) -> None:
    row = a_task("FAILED")
    Task.objects.filter(pk=row.pk).replay(by="ada", reason="first")
    QueueControl.objects.pause("audited", by="bob")
    address = list_of("auditentry")
    for query, words in {
        "": ("tasks.replay", "queue.pause"),
        "?q=ada": ("tasks.replay",),
        f"?q={row.pk}": ("tasks.replay",),
        "?q=audited": ("queue.pause",),
        "?operation=queue.pause": ("queue.pause",),
    }.items():
        shown = {entry.operation for entry in ann.get(address + query).context["cl"].result_list}
        assert shown == set(words)
    page = ann.get(page_of(_newest()))
    assert page.status_code == 200
    assert ann.post(page_of(_newest()), {"reason": "x"}).status_code == 403


def test_the_command_lists_and_filters_entries() -> None:
    row = a_task("FAILED")
    Task.objects.filter(pk=row.pk).replay(by="ada", reason="first")
    QueueControl.objects.pause("audited", by="bob")
    assert [one["operation"] for one in json_of("audit")] == ["queue.pause", "tasks.replay"]
    for words in (("--actor", "ada"), ("--object", row.pk), ("--operation", "tasks.replay")):
        (entry,) = json_of("audit", *words)
        assert (entry["object_id"], entry["reason"]) == (str(row.pk), "first")
    assert [one["operation"] for one in json_of("show", row.pk)["audit"]] == ["tasks.replay"]


def test_the_api_shows_a_tenant_its_own_entries_only(api: None) -> None:
    acme, globex = a_client(a_tenant("acme")), a_client(a_tenant("globex"))
    made = acme.post("/tasks", call()).json()["task_id"]
    globex.post("/tasks", call())
    acme.post(f"/tasks/{made}/cancel", {"reason": "not needed"})
    found = acme.get("/audit").json()["data"]
    cancelled, created, _key = found
    assert [cancelled["operation"], created["operation"]] == ["tasks.cancel", "task.create"]
    assert (cancelled["object_id"], cancelled["reason"]) == (made, "not needed")
    assert (cancelled["source"], cancelled["address"]) == ("API", "127.0.0.1")
    assert cancelled["actor"].startswith("API key ddt_live_")
    assert {one["object_id"] for one in globex.get("/audit").json()["data"]}.isdisjoint({made})
    assert not globex.get(f"/audit?object_id={made}").json()["data"]


def _operations(client: ApiClient, query: str) -> list[str]:
    answer = client.get(f"/audit{query}")
    assert answer.status_code == 200, answer.content
    return [one["operation"] for one in answer.json()["data"]]


def test_the_api_filters_and_pages_entries(api: None) -> None:
    acme = a_client(a_tenant("acme"))
    ids = [acme.post("/tasks", call()).json()["task_id"] for _ in range(3)]
    acme.post(f"/tasks/{ids[0]}/cancel", {})
    assert _operations(acme, f"?object_id={ids[0]}") == ["tasks.cancel", "task.create"]
    assert _operations(acme, "?operation=tasks.cancel") == ["tasks.cancel"]
    assert _operations(acme, "?actor=unknown") == []
    assert _operations(acme, "?object_type=API%20key") == ["tenant.create_api_key"]
    first = acme.get("/audit?limit=2").json()
    second = acme.get(f"/audit?limit=2&cursor={first['next_cursor']}").json()
    seen = [one["audit_id"] for page in (first, second) for one in page["data"]]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 4
    assert acme.get("/audit?object_type=cat").status_code == 400


def test_a_dry_run_of_the_api_and_a_replayed_request_have_no_entry(api: None) -> None:
    acme = a_client(a_tenant("acme"))
    before = AuditEntry.objects.count()
    assert acme.post("/tasks?dry_run=1", call()).status_code == 200
    assert AuditEntry.objects.count() == before
    for _ in range(2):
        assert acme.post("/tasks", call(), Idempotency_Key="once").status_code == 201
    assert AuditEntry.objects.count() == before + 1


def test_entries_are_deleted_after_their_retention(settings: Any) -> None:
    rows = many_tasks(3)
    for row in rows:
        Task.objects.filter(pk=row.pk).cancel(by="ada")
    old, older, _new = AuditEntry.objects.order_by("pk").values_list("pk", flat=True)
    now = timezone.now()
    long_ago = now - timedelta(days=366)
    AuditEntry.objects.unguarded().filter(pk__in=[old, older]).update(at=long_ago)
    assert [audit.prune_audit(now, 1) for _ in range(3)] == [1, 1, 0]
    assert AuditEntry.objects.count() == 1
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "RETENTION": {"AUDIT": 1e-6}}
    assert audit.prune_audit(now + timedelta(hours=1), 100) == 1


def test_creates_and_edits_of_schedules_and_calendars_have_entries(api: None) -> None:
    acme = a_client(a_tenant("acme"))
    target = {"task": ADD, "args": [1, 2]}
    body = {"name": "nightly", "target_config": target, "interval_seconds": 3600}
    made = acme.post("/recurring-tasks", body)
    assert made.status_code == 201, made.content
    path = made.headers["Location"]
    assert acme.patch(path, {"interval_seconds": 60}, If_Match="*").status_code == 200
    changed = _newest()
    assert (changed.before["interval_seconds"], changed.after["interval_seconds"]) == (3600, 60)
    path = acme.post("/calendars", {"name": "office", "working_days": [1, 2]}).headers["Location"]
    assert acme.patch(path, {"working_days": [1]}, If_Match="*").status_code == 200
    assert acme.delete(path).status_code == 200
    assert _operations(acme, "?limit=5") == [
        "calendar.delete",
        "calendar.save",
        "calendar.save",
        "schedule.save",
        "schedule.create",
    ]
    assert {one.source for one in AuditEntry.objects.order_by("-pk")[:5]} == {"API"}
