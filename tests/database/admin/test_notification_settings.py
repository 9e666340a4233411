"""The pages of notification settings: create, change, test and delete, without the secret URL."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

import pytest
from django.urls import reverse

from django_durable_tasks.contrib.notifications.models import NotificationSetting
from tests.database.admin.site import list_of, operator, page_of
from tests.database.notifications.sending import SETTINGS, a_webhook

pytestmark = pytest.mark.django_db
SECRET = "https://hooks.slack.com/services/T0/B0/hunter2"
ADD = "admin:durable_tasks_notifications_notificationsetting_add"


@pytest.fixture(autouse=True)
def notifications_are_on(settings: Any) -> None:
    """Switch notifications on."""
    settings.DURABLE_TASKS = dict(SETTINGS)


def _form(**values: Any) -> dict[str, Any]:
    given = {"tenant": "1", "name": "ops", "enabled": "on", "on_failure": "on", "time_zone": "UTC"}
    given |= {"delivery_type": "EMAIL", "destination": "ops@example.com\r\noncall@example.com"}
    return {**given, **values}


def _opened(page: str) -> str:
    found = re.search(r'name="opened" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_a_setting_is_created_and_changed() -> None:
    ann = operator()
    made = ann.post(reverse(ADD), _form())
    assert made.status_code == 302, made.content.decode()
    row = NotificationSetting.objects.get()
    assert row.delivery_config == {"to": ["ops@example.com", "oncall@example.com"]}
    assert (row.updated_by, row.on_failure, row.on_success) == ("ann", True, False)
    opened = _opened(ann.get(page_of(row)).content.decode())
    changed = _form(on_success="on", digest="60", opened=opened, reason="more")
    assert ann.post(page_of(row), changed).status_code == 302
    row.refresh_from_db()
    assert (row.on_success, row.digest, row.revision, row.reason) == (True, 60.0, 2, "more")
    stale = ann.post(page_of(row), _form(opened=opened))
    assert "was changed after you opened the page" in stale.content.decode()


def test_the_url_of_slack_is_on_no_page_and_stays_unless_it_is_changed() -> None:
    ann, row = operator(), a_webhook(SECRET, delivery_type="SLACK_WEBHOOK")
    page = ann.get(page_of(row)).content.decode()
    opened = _opened(page)
    plain = opened.split(":")[0].lstrip(".")
    sealed = zlib.decompress(base64.urlsafe_b64decode(plain + "=" * (-len(plain) % 4)))
    for text in (page, ann.get(list_of("notificationsetting")).content.decode(), sealed.decode()):
        assert "hunter2" not in text
        assert "T0/B0" not in text
    shown = "https://hooks.slack.com/********"
    given = _form(name="hook", delivery_type="SLACK_WEBHOOK", destination=shown, opened=opened)
    assert ann.post(page_of(row), given).status_code == 302
    row.refresh_from_db()
    assert (row.delivery_config, row.revision) == ({"url": SECRET}, 2)


def test_a_refused_value_is_shown_as_a_message() -> None:
    ann = operator()
    page = ann.post(reverse(ADD), _form(destination="ops@example.org"), follow=True)
    assert "NOTIFICATION_EMAIL_ALLOW" in page.content.decode()
    assert not NotificationSetting.objects.exists()
