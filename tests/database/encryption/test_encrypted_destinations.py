"""Destinations of notification settings are encrypted in the database, and nowhere shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.exceptions import DecryptionFailed, EncryptionKeyMissing, InvalidOption
from django_durable_tasks.models import AuditEntry, Task
from django_durable_tasks.models.fields import DatabaseNow
from tests.database.admin.site import list_of, operator, page_of
from tests.database.api.client import SETTINGS as API_SETTINGS
from tests.database.api.client import a_client, a_tenant
from tests.database.commands.durable_command import json_of
from tests.database.encryption.keys import raw, use
from tests.database.notifications.sending import SETTINGS, a_setting, a_webhook, run

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "private.person@example.com"
URL = "https://hooks.slack.com/services/T00/B00/hunter2"


@pytest.fixture(autouse=True)
def encryption(settings: Any) -> None:
    """Switch notifications and encryption on."""
    settings.DURABLE_TASKS = {**API_SETTINGS, **SETTINGS}
    use(settings, "first")


def _slack(name: str = "chat") -> NotificationSetting:
    return a_webhook(URL, name, delivery_type="SLACK_WEBHOOK")


def _row(name: str = "chat") -> NotificationSetting:
    return NotificationSetting.objects.get(name=name)


def _a_test_message() -> Task:
    found: Task = Task.objects.get(pk=deliveries.create_test(_row("ops"), by="ada"))
    return found


def _assert_nowhere() -> None:
    for table in ("notification_setting", "audit_entry", "idempotent_request", "task"):
        found = raw(f"durable_tasks_{table}")
        assert ADDRESS not in found, table
        assert "hunter2" not in found, table


def test_a_destination_is_encrypted_when_a_setting_is_created_and_changed() -> None:
    made = _slack()
    _assert_nowhere()
    assert (made.delivery_config, made.encryption_key) == ({"url": URL}, "first")
    assert _row().delivery_config == {"url": URL}
    deliveries.change_setting(
        _row(), delivery_type="EMAIL", delivery_config={"to": [ADDRESS]}, by="ada"
    )
    _assert_nowhere()
    assert (_row().delivery_type, _row().delivery_config) == ("EMAIL", {"to": [ADDRESS]})
    entry = AuditEntry.objects.latest("pk")
    assert entry.before["delivery_config"] != entry.after["delivery_config"]
    assert entry.after["delivery_config"].startswith("(encrypted)")


def test_a_masked_url_that_is_sent_back_keeps_the_ciphertext() -> None:
    _slack()
    stored = NotificationSetting.objects.values_list("delivery_config", flat=True)
    before = stored.get()
    deliveries.change_setting(_row(), delivery_config=_row().shown_config, on_late=True)
    assert _row().on_late
    assert stored.all().get() == before
    assert "delivery_config" not in AuditEntry.objects.latest("pk").after


def test_a_message_is_sent_to_an_encrypted_destination(mailoutbox: list[Any]) -> None:
    a_setting(delivery_config={"to": [ADDRESS]})
    run(_a_test_message())
    assert [mail.to for mail in mailoutbox] == [[ADDRESS]]


def test_destinations_are_rotated_and_older_ones_are_encrypted(settings: Any) -> None:
    settings.DURABLE_TASKS = dict(SETTINGS)
    a_setting(delivery_config={"to": [ADDRESS]})
    assert ADDRESS in raw("durable_tasks_notification_setting")
    use(settings, "first")
    _slack()
    assert json_of("rotate-keys", "--include-plain")["changed"] == 1
    assert ADDRESS not in raw("durable_tasks_notification_setting")
    use(settings, "second", "first")
    found = json_of("rotate-keys", "--dry-run")["remaining"]
    assert found["durable_tasks_notification_setting"] == 2
    revision = _row().revision
    assert json_of("rotate-keys")["changed"] == 2
    use(settings, "second")
    assert (_row().delivery_config, _row("ops").delivery_config) == (
        {"url": URL},
        {"to": [ADDRESS]},
    )
    assert (_row().encryption_key, _row().revision) == ("second", revision)


def test_a_destination_that_was_copied_from_another_setting_is_not_used() -> None:
    a_setting(delivery_config={"to": [ADDRESS]})
    _slack()
    rows = NotificationSetting.objects.unguarded()
    stolen = rows.filter(name="chat").values_list("delivery_config", flat=True).get()
    rows.filter(name="ops").update(delivery_config=stolen)
    with pytest.raises(DecryptionFailed, match="copied from another row"):
        _ = _row("ops").delivery_config


def test_without_the_key_a_message_waits_and_is_sent_later(
    settings: Any, mailoutbox: list[Any]
) -> None:
    a_setting(delivery_config={"to": [ADDRESS]})
    use(settings, "second")
    task = run(_a_test_message())
    assert (task.status, task.failures, task.crashes) == ("PENDING", 0, 0)
    assert (_row("ops").last_delivery_status, mailoutbox) == ("RETRYING", [])
    assert "first" not in _row("ops").last_delivery_error
    use(settings, "second", "first")
    Task.objects.unguarded().filter(pk=task.pk).update(due_at=DatabaseNow())
    run(task)
    assert [mail.to for mail in mailoutbox] == [[ADDRESS]]
    assert _row("ops").last_delivery_status == "SENT"


def test_without_the_key_a_setting_is_changed_and_its_destination_replaced(settings: Any) -> None:
    _slack()
    use(settings, "second")
    deliveries.change_setting(_row(), on_late=True)
    with pytest.raises(EncryptionKeyMissing):
        _ = _row().shown_config
    with pytest.raises(InvalidOption, match="masked URL"):
        deliveries.change_setting(
            _row(), delivery_config={"url": "https://hooks.slack.com/********"}
        )
    use(settings, "second", "first")
    assert (_row().delivery_config, _row().on_late) == ({"url": URL}, True)
    use(settings, "second")
    deliveries.change_setting(_row(), delivery_config={"url": f"{URL}2"})
    assert (_row().delivery_config, _row().encryption_key) == ({"url": f"{URL}2"}, "second")


def test_without_the_key_the_pages_and_the_command_say_why(settings: Any) -> None:
    row, ann = _slack(), operator()
    use(settings, "second")
    for page in (ann.get(list_of("notificationsetting")), ann.get(page_of(row))):
        assert page.status_code == 200
    shown = ann.get(list_of("notificationsetting")).content.decode()
    assert "is encrypted with key" in shown
    add = ann.get(reverse("admin:durable_tasks_notifications_notificationsetting_add"))
    assert add.status_code == 200
    (listed,) = json_of("notify", "list")
    assert "is encrypted with key" in listed["to"]


def test_without_the_key_the_api_shows_no_destination_and_no_key(settings: Any) -> None:
    acme = a_client(a_tenant())
    body = {
        "name": "ops",
        "on_failure": True,
        "delivery_type": "EMAIL",
        "delivery_config": {"to": [ADDRESS]},
    }
    made = acme.post("/notification-settings", body, Idempotency_Key="k1")
    assert made.status_code == 201, made.content
    _assert_nowhere()
    use(settings, "second")
    answer = acme.get(made.headers["Location"])
    assert (answer.status_code, answer.json()["delivery_config"]) == (200, None)
    assert "first" not in answer.content.decode()


def test_a_setting_that_cannot_be_decrypted_does_not_hide_the_others(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = a_client(a_tenant("acme"))
    use(settings, "first")
    lost = a_setting(tenant=client.tenant, name="lost", delivery_config={"to": [ADDRESS]})
    use(settings, "second")
    a_setting(tenant=client.tenant, name="well", delivery_config={"to": [ADDRESS]})
    answer = client.get("/notification-settings")
    assert answer.status_code == 200, answer.content
    shown = {one["name"]: one for one in answer.json()["data"]}
    assert shown["well"]["delivery_config"] == {"to": [ADDRESS]}
    assert shown["well"]["delivery_config_error"] == ""
    assert shown["lost"]["delivery_config"] is None
    assert "cannot be decrypted" in shown["lost"]["delivery_config_error"]
    assert "first" not in answer.content.decode()
    assert f"Notification setting {lost.pk} cannot be decrypted" in caplog.text
    path = f"/notification-settings/{lost.pk}"
    assert client.get(path).json()["delivery_config"] is None
    changed = client.patch(path, {"delivery_config": {"to": [ADDRESS]}}, If_Match="*")
    assert changed.status_code == 200, changed.content
    assert client.get(path).json()["delivery_config_error"] == ""
