"""``/notification-settings``: create, read, change, test and delete, without revealing secrets."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.models import Task
from django_durable_tasks.registry import NOTIFICATION_TASK
from tests.database.api.client import ApiClient, pointers

pytestmark = pytest.mark.django_db
SECRET = "https://hooks.slack.com/services/T00/B00/hunter2"
EMAIL = {
    "name": "ops",
    "on_failure": True,
    "delivery_type": "EMAIL",
    "delivery_config": {"to": ["ops@example.com"]},
}


def _slack(**values: Any) -> dict[str, Any]:
    config = {"url": SECRET}
    return {"name": "chat", "delivery_type": "SLACK_WEBHOOK", "delivery_config": config, **values}


def test_a_setting_is_created_listed_changed_and_deleted(acme: ApiClient) -> None:
    made = acme.post("/notification-settings", EMAIL)
    assert made.status_code == 201, made.content
    body, path = made.json(), made.headers["Location"]
    assert (body["name"], body["on_failure"], body["on_success"]) == ("ops", True, False)
    assert body["delivery_config"] == {"to": ["ops@example.com"]}
    (listed,) = acme.get("/notification-settings").json()["data"]
    assert listed == body
    tag = acme.get(path).headers["ETag"]
    changed = acme.patch(
        path,
        {"digest": 300, "quiet_from": "22:00:00", "quiet_until": "07:00:00", "user_id": "ada"},
        If_Match=tag,
    )
    assert changed.status_code == 200, changed.content
    assert (changed.json()["digest"], changed.json()["quiet_from"]) == (300.0, "22:00:00")
    assert acme.patch(path, {"digest": None}, If_Match=tag).status_code == 412
    assert acme.delete(path).status_code == 200
    assert acme.get(path).status_code == 404


def test_a_slack_url_is_never_returned_and_its_mask_keeps_it(acme: ApiClient) -> None:
    made = acme.post("/notification-settings", _slack())
    path, shown = made.headers["Location"], made.json()["delivery_config"]
    assert "hunter2" not in made.content.decode()
    changed = acme.patch(path, {"delivery_config": shown, "on_late": True}, If_Match="*")
    assert changed.status_code == 200, changed.content
    assert NotificationSetting.objects.get().delivery_config == {"url": SECRET}
    for answer in (changed, acme.get(path), acme.get("/notification-settings")):
        assert "hunter2" not in answer.content.decode()
        assert "services" not in answer.content.decode()
    other = {"delivery_config": {"url": "https://hooks.slack.com/x/********"}}
    refused = acme.patch(path, other, If_Match="*")
    assert (refused.status_code, pointers(refused)) == (422, ["#/delivery_config"])
    for change in (
        {"delivery_type": "HTTP_WEBHOOK"},
        {"delivery_type": "HTTP_WEBHOOK", "delivery_config": shown},
    ):
        assert acme.patch(path, change, If_Match="*").status_code == 422
    assert NotificationSetting.objects.get().delivery_config == {"url": SECRET}


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"delivery_type": "PIGEON"}, "#/delivery_type"),
        ({"delivery_config": {"to": ["ops@example.org"]}}, "#/delivery_config"),
        ({"delivery_config": {"url": "https://example.com/"}}, "#/delivery_config"),
        ({"delivery_config": []}, "#/delivery_config"),
        ({"digest": 5}, "#/digest"),
        ({"quiet_from": "22:00:00"}, "#/quiet_until"),
        ({"time_zone": "Mars/Olympus"}, "#/time_zone"),
        ({"name": "a\nb"}, "#/name"),
        ({"task_name": "a\x00b"}, "#/task_name"),
    ],
)
def test_bad_input_names_the_field(acme: ApiClient, change: dict[str, Any], pointer: str) -> None:
    answer = acme.post("/notification-settings", {**EMAIL, **change})
    assert answer.status_code in (400, 422), answer.content
    assert pointers(answer) == [pointer]
    assert not NotificationSetting.objects.exists()


def test_alerts_of_the_installation_are_no_field(acme: ApiClient) -> None:
    assert acme.post("/notification-settings", {**EMAIL, "on_alert": True}).status_code == 400


def test_a_name_belongs_to_one_setting_of_a_tenant(acme: ApiClient, globex: ApiClient) -> None:
    assert acme.post("/notification-settings", EMAIL).status_code == 201
    assert acme.post("/notification-settings", EMAIL).status_code == 409
    assert globex.post("/notification-settings", EMAIL).status_code == 201


def test_the_number_of_settings_of_a_tenant_is_limited(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "_SETTINGS_MAX", 1)
    assert acme.post("/notification-settings", EMAIL).status_code == 201
    answer = acme.post("/notification-settings", {**EMAIL, "name": "second"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_a_test_message_is_a_task(acme: ApiClient) -> None:
    path = acme.post("/notification-settings", EMAIL).headers["Location"]
    assert acme.post(f"{path}/test?dry_run=1").status_code == 200
    assert not Task.objects.filter(name=NOTIFICATION_TASK).exists()
    answer = acme.post(f"{path}/test", {"reason": "try"})
    assert answer.status_code == 200, answer.content
    task = Task.objects.get(name=NOTIFICATION_TASK)
    assert (answer.json()["task_id"], task.tenant_id) == (str(task.pk), acme.tenant.pk)


def test_a_test_message_counts_as_an_open_task(acme: ApiClient) -> None:
    path = acme.post("/notification-settings", EMAIL).headers["Location"]
    quotas.set_quotas(acme.tenant, open_tasks=1, by="test")
    assert [acme.post(f"{path}/test").status_code for _ in range(2)] == [200, 429]
    assert Task.objects.filter(name=NOTIFICATION_TASK).count() == 1
