"""Audit entries in the admin, on the command line and in the API, and their retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from django_durable_tasks import audit
from django_durable_tasks.contrib.api import access
from django_durable_tasks.models import (
    AuditEntry,
    Calendar,
    DeadLetter,
    QueueControl,
    RecurringTask,
    Task,
    Tenant,
)
from tests.database.admin.site import list_of, operator, page_of, staff
from tests.database.api.client import ADD, SETTINGS, ApiClient, a_client, a_tenant, call
from tests.database.commands.durable_command import json_of
from tests.database.notifications.sending import a_setting
from tests.factories import a_task, many_tasks
from tests.project.tasks import noop
from tests.repetitions import repetitions

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


def _named_objects(slug: str) -> dict[str, str]:
    """Change an object of each type that has a name; return the names by type, in another spelling
    than the ids.
    """
    tenant = a_tenant(slug)
    name = f"{slug}-object"
    Calendar.objects.upsert(name, tenant=tenant)
    row = RecurringTask.objects.upsert(name=name, task=noop, cron="0 2 * * *", tenant=tenant)
    row.pause("audit", by="ada")
    access.create_key(tenant, name, ("read",))
    a_setting(tenant=tenant, name=name)
    access.assign_staff(tenant, User.objects.create_user(f"{slug}-user", is_staff=True).username)
    return {**dict.fromkeys(audit.NAMED, name), "tenant": slug}


def test_an_object_is_found_by_its_name(ann: Client, api: None, subtests: pytest.Subtests) -> None:
    names, others = _named_objects("acme"), _named_objects("globex")
    assert set(names) == set(audit.NAMED)
    for object_type in sorted(audit.NAMED):
        with subtests.test(object_type):
            _assert_found(ann, object_type, names[object_type], "acme")
            _assert_found(ann, object_type, others[object_type], "globex")


def _assert_found(ann: Client, object_type: str, term: str, tenant: str) -> None:
    """Check that each interface finds the entries of the object with this name, and no others."""
    (model, column) = audit.NAMED[object_type]
    (row,) = model._default_manager.filter(**{column: term})
    expected = set(AuditEntry.objects.of_object(object_type, row.pk).values_list("pk", flat=True))
    assert expected
    listed = ann.get(list_of("auditentry"), {"q": term}).context["cl"].result_list
    by_command = {entry["id"] for entry in json_of("audit", "--object", term)}
    client = a_client(Tenant.objects.get(slug=tenant))
    query = {"object_id": term, "object_type": object_type}
    by_api = {one["audit_id"] for one in client.get("/audit?" + urlencode(query)).json()["data"]}
    for found in ({one.pk for one in listed}, by_command):
        assert expected <= found
        entries = AuditEntry.objects.filter(pk__in=found).select_related("tenant")
        assert {entry.tenant and entry.tenant.slug for entry in entries} == {tenant}
    # A key of the tenant does not see how operators assign staff users.
    assert by_api == (expected if object_type != "tenant" else set())


def test_a_set_is_found_by_the_id_of_each_of_its_objects(ann: Client) -> None:
    rows = many_tasks(3, "FAILED")
    letters = DeadLetter.objects.order_by("pk")
    DeadLetter.objects.filter(pk__in=[letters[0].pk, letters[1].pk]).discard(by="ada")
    Task.objects.filter(pk__in=[row.pk for row in rows[:2]]).replay(by="bob")
    for term, found in (
        (str(rows[0].pk), {"tasks.replay"}),
        (rows[1].pk.hex, {"tasks.replay"}),
        (str(rows[2].pk), set()),
        (str(letters[1].pk), {"dead_letters.discard"}),
        (str(letters[2].pk), set()),
        (f"{letters[1].pk}0", set()),
    ):
        listed = ann.get(list_of("auditentry"), {"q": term}).context["cl"].result_list
        assert {entry.operation for entry in listed} == found, term


def test_the_list_is_filtered_by_actor_and_by_day_in_the_zone_of_the_site(
    ann: Client, settings: Any
) -> None:
    settings.TIME_ZONE = "America/New_York"
    zone = ZoneInfo(settings.TIME_ZONE)
    now = datetime.now(UTC)

    @examples(
        max_examples=repetitions(20),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        st.lists(
            st.tuples(st.sampled_from(["ada", "bob", ""]), st.integers(0, 10 * 24 * 60)),
            min_size=1,
            max_size=6,
        )
    )
    def found(drawn: list[tuple[str, int]]) -> None:
        AuditEntry.objects.unguarded().delete()
        entries = [
            AuditEntry.objects.unguarded().create(
                source="CODE",
                actor=actor,
                operation="queue.pause",
                object_type="queue",
                object_id="mail",
                at=now - timedelta(minutes=minutes),
            )
            for actor, minutes in drawn
        ]
        for wanted in entries:
            day = wanted.at.astimezone(zone).date()
            of_actor = {one.pk for one in entries if one.actor == wanted.actor}
            of_day = {one.pk for one in entries if one.at.astimezone(zone).date() == day}
            for asked, expected in (
                ({"actor": wanted.actor}, of_actor),
                ({"day": str(day)}, of_day),
            ):
                page = ann.get(list_of("auditentry"), asked)
                assert page.status_code == 200
                assert {entry.pk for entry in page.context["cl"].result_list} == expected

    found()
    for nonsense in ("yesterday", "9999-12-31", "2026-02-30", ""):
        assert ann.get(list_of("auditentry"), {"day": nonsense}).status_code == 200


def test_the_history_of_a_task_links_to_older_entries(ann: Client) -> None:
    row = a_task()
    entries = [
        AuditEntry(source="CODE", operation="tasks.edit", object_type="task", object_id=str(row.pk))
        for _ in range(audit.SHOWN + 1)
    ]
    AuditEntry.objects.unguarded().bulk_create(entries)
    older = f"{list_of('auditentry')}?q={row.pk}"
    assert older in ann.get(page_of(row)).content.decode()
    assert ann.get(older).context["cl"].result_count == audit.SHOWN + 1


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
