"""What the API derives from models and options, and how clients find their objects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import models
from django.test import Client
from django.test.utils import isolate_apps
from django.utils import timezone

from django_durable_tasks import Workflow
from django_durable_tasks.contrib.api.fields import Seconds, Text
from django_durable_tasks.contrib.api.serializers import Answer, Options, list_of
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.models.fields import EncryptedJSONField
from tests.database.api.client import ROOT, ApiClient, a_client, call, pointers
from tests.factories import many_tasks
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


@isolate_apps("tests.project")
def test_a_new_column_and_a_new_option_are_in_bodies_and_answers() -> None:
    class Copied(models.Model):
        id = models.BigAutoField(primary_key=True)
        color = models.CharField(max_length=5, choices=[("RED", "red")], help_text="Of the roof.")
        secret = EncryptedJSONField(null=True)
        note = models.TextField()

        class Meta:
            app_label = "project"

        def __str__(self) -> str:
            return self.color

    class CopiedAnswer(Answer):
        """A copy."""

        class Meta:
            model = Copied
            hidden = ("note",)

    class CopiedBody(Options):
        class Meta(Options.Meta):
            model = Copied
            options = ("color", "lease")
            seconds = {"lease": 3.0}

    shown = CopiedAnswer.shown(Copied(color="RED", secret={"password": "x"}, note="n"))
    assert shown == {"color": "RED", "secret": {"password": "********"}}
    page: Any = list_of(CopiedAnswer)().fields["data"]
    assert page.child.fields["color"].help_text == "Of the roof."
    assert CopiedBody.valid({"color": "RED", "lease": 3}) == {"color": "RED", "lease": 3.0}
    fields: Any = CopiedBody().fields
    assert fields["color"].choices == {"RED": "RED"}
    assert isinstance(fields["lease"], Seconds)
    assert not isinstance(fields["color"], Text)


def test_the_type_of_a_target_decides_which_members_its_config_has() -> None:
    document = Client().get(f"{ROOT}/schema").json()
    schemas = document["components"]["schemas"]
    for body in ("NewTaskBody", "NewScheduleBody", "StepBody"):
        variants = schemas[body]["discriminator"]["mapping"]
        configs = {
            kind: schemas[reference.rpartition("/")[2]]["properties"]["target_config"]
            for kind, reference in variants.items()
        }
        assert configs["HTTP_CALLBACK"]["required"] == ["url"]
        assert configs["HTTP_CALLBACK"]["properties"]["headers"] == {"type": "object"}
        assert set(configs["CELERY_TASK"]["properties"]) == {"task", "args", "kwargs"}
        assert "routing_key" in configs["QUEUE_MESSAGE"]["properties"]
        assert not any(config["additionalProperties"] for config in configs.values())


def test_the_operations_of_the_document_have_names_for_clients() -> None:
    document = Client().get(f"{ROOT}/schema").json()
    found = {
        operation["operationId"]: operation["summary"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert all(found.values())
    names = {"createTask", "listTasks", "getTask", "updateTask", "cancelTask", "createTasks"}
    names |= {"deleteRecurringTask", "resumeRecurringTask", "getKey", "getQuota"}
    assert names <= set(found)


def test_a_task_starts_after_a_delay_in_seconds(acme: ApiClient) -> None:
    before = timezone.now()
    answer = acme.post("/tasks", call(delay=90))
    assert answer.status_code == 201
    row = Task.objects.get(pk=answer.json()["task_id"])
    assert timedelta(seconds=89) < row.run_at - before < timedelta(seconds=120)
    soon = (before + timedelta(hours=1)).isoformat()
    refused = acme.post("/tasks", call(delay=90, run_at=soon))
    assert (refused.status_code, pointers(refused)) == (422, ["#/delay"])
    assert acme.post("/tasks", call(delay=-1)).status_code == 422


def test_tasks_are_found_by_their_keys_and_by_what_created_them(
    acme: ApiClient, globex: ApiClient
) -> None:
    many_tasks(2, tenant=acme.tenant)
    many_tasks(1, "FAILED", tenant=acme.tenant)
    named = acme.post("/tasks", call(key="k", idempotency_key="once", delay=60)).json()["task_id"]
    globex.post("/tasks", call(key="k", idempotency_key="once"))
    flow = Workflow("flow")
    flow.add(noop)
    run = flow.start(tenant=acme.tenant)
    schedule = RecurringTask.objects.upsert(
        name="nightly", task=noop, cron="0 2 * * *", tenant=acme.tenant
    )
    fired = schedule.trigger_now()

    def found(query: str) -> list[str]:
        answer = acme.get(f"/tasks?{query}")
        assert answer.status_code == 200, answer.content
        return [task["task_id"] for task in answer.json()["data"]]

    assert found("key=k") == found("idempotency_key=once") == [named]
    assert found(f"workflow_id={run.pk}") == [str(Task.objects.get(workflow=run.pk).pk)]
    assert found(f"recurring_task_id={schedule.pk}") == [str(fired.pk)]
    assert (
        len(found("status=FAILED,PENDING"))
        == 1 + Task.objects.filter(tenant=acme.tenant, status="PENDING").count()
    )
    assert len(found("status=FAILED")) == 1
    refused = acme.get("/tasks?status=FAILED,LATE")
    assert (refused.status_code, pointers(refused)) == (400, ["status"])
    assert acme.get("/tasks?workflow_id=7").status_code == 400


def test_a_client_sees_its_own_key_and_its_scopes(acme: ApiClient) -> None:
    reader = a_client(acme.tenant, "read")
    answer = reader.get("/key").json()
    assert answer["scopes"] == ["read"]
    assert answer["prefix"].startswith("ddt_live_")
    assert reader.key.startswith(answer["prefix"])
    assert answer["expires_at"] is None
    assert not {"digest", "identifier"} & set(answer)
    assert reader.key not in str(answer)


def test_a_staff_user_sees_its_scopes(acme: ApiClient, settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "API_SESSIONS": True}
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    answer = client.get(f"{ROOT}/key").json()
    assert (answer["name"], answer["prefix"], answer["created_at"]) == ("root", "", None)
    assert "read" in answer["scopes"]


def test_a_deleted_recurring_task_ends_and_releases_its_name(acme: ApiClient) -> None:
    body: dict[str, Any] = {"name": "nightly", "cron": "0 2 * * *", **call()}
    first = acme.post("/recurring-tasks", body).json()["recurring_task_id"]
    planned = acme.delete(f"/recurring-tasks/{first}?dry_run=1").json()
    assert planned["changes"]["status"] == {"before": "ACTIVE", "after": "CANCELLED"}
    answer = acme.delete(f"/recurring-tasks/{first}", Idempotency_Key="one")
    assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLED")
    repeated = acme.delete(f"/recurring-tasks/{first}", Idempotency_Key="one")
    assert repeated.json() == answer.json()
    second = acme.post("/recurring-tasks", body)
    assert second.status_code == 201
    assert second.json()["name"] == "nightly"
    assert RecurringTask.objects.get(pk=first).name.startswith("nightly (ended")


def test_a_member_of_another_target_names_the_missing_type(acme: ApiClient) -> None:
    answer = acme.post("/tasks", {"target_config": {"url": "https://example.com"}})
    assert (answer.status_code, pointers(answer)) == (422, ["#/target_config/url"])
    assert "target_type" in answer.json()["detail"]
