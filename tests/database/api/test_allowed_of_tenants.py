"""A tenant uses what the settings allow to it, and nothing that they allow to another tenant."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as django_settings
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks import conf
from django_durable_tasks.conf import InvalidSetting, allowed_in
from django_durable_tasks.contrib.notifications.messages import is_allowed
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from tests.database.api.client import ADD, ApiClient, call

SLUGS = st.sampled_from(["acme", "globex", "acme-eu", "default", "*"])
ENTRIES = st.lists(st.sampled_from(["a.example", "b.example", "{tenant}.example"]), max_size=3)


@given(given=st.dictionaries(SLUGS, ENTRIES), slug=SLUGS.filter(lambda slug: slug != "*"))
def test_a_tenant_has_the_entries_of_all_and_its_own(
    given: dict[str, list[str]], slug: str
) -> None:
    own = [*given.get("*", ()), *given.get(slug, ())]
    assert allowed_in(given, slug) == tuple(one.replace("{tenant}", slug) for one in own)
    assert len(allowed_in(given, None)) == sum(map(len, given.values()))
    assert allowed_in(own, slug) == allowed_in({"*": own}, slug)


@pytest.mark.parametrize(
    ("entry", "is_clear"),
    [
        ("{tenant}-*", False),
        ("{tenant}_?", False),
        ("{tenant}*", False),
        ("*{tenant}", False),
        ("x-{tenant}.*", False),
        ("*-{tenant}", False),
        ("{tenant}[.]mail", False),
        ("{tenant}.*", True),
        ("mail.{tenant}.?", True),
        ("{tenant}", True),
        ("{tenant}-mail", True),
        ("*", True),
    ],
)
def test_a_pattern_matches_queues_of_one_tenant(settings: Any, entry: str, is_clear: bool) -> None:
    settings.DURABLE_TASKS = {"API_QUEUES": [entry]}
    if is_clear:
        assert [entry] == conf.settings().API_QUEUES
    else:
        with pytest.raises(InvalidSetting, match="several tenants"):
            conf.settings()


def _configure(settings: Any, **given: Any) -> None:
    settings.DURABLE_TASKS = {**django_settings.DURABLE_TASKS, **given}


def _mail(client: ApiClient, address: str) -> int:
    body = {"delivery_type": "EMAIL", "delivery_config": {"to": [address]}, "on_failure": True}
    return int(client.post("/notification-settings", {"name": address, **body}).status_code)


@pytest.mark.django_db
def test_e_mail_goes_to_the_addresses_of_the_tenant_only(
    acme: ApiClient, globex: ApiClient, settings: Any
) -> None:
    lists = {"acme": ["*@acme.example"], "*": ["*@shared.example", "*@{tenant}.test"]}
    _configure(settings, NOTIFICATION_EMAIL_ALLOW=lists)
    addresses = ["a@acme.example", "a@shared.example", "a@acme.test", "a@globex.test"]
    assert [_mail(acme, one) for one in addresses] == [201, 201, 201, 422]
    assert [_mail(globex, one) for one in addresses] == [422, 201, 422, 201]
    # What was stored before the settings changed is checked again before each message.
    stored = NotificationSetting.objects.for_tenant(globex.tenant).values_list("name", flat=True)
    _configure(settings, NOTIFICATION_EMAIL_ALLOW={"acme": ["*@shared.example"]})
    allowed = conf.allowed("NOTIFICATION_EMAIL_ALLOW", globex.tenant.slug)
    assert not [one for one in stored if is_allowed(one, allowed)]


@pytest.mark.django_db
def test_internal_servers_and_tasks_are_those_of_the_tenant(
    acme: ApiClient, globex: ApiClient, settings: Any
) -> None:
    tasks = {"acme": [ADD], "*": ["django_durable_tasks.http_callback"]}
    _configure(settings, HTTP_ALLOW={"acme": ["10.1.2.3:9000"]}, API_TASKS=tasks)
    callback = {
        "target_type": "HTTP_CALLBACK",
        "target_config": {"url": "http://10.1.2.3:9000/", "body": "x"},
    }
    for client, expected in ((acme, 201), (globex, 422)):
        assert client.post("/tasks", callback).status_code == expected
        assert client.post("/tasks", call()).status_code == expected
        public = {**callback, "target_config": {"url": "https://example.com/", "body": "x"}}
        assert client.post("/tasks", public).status_code == 201


@pytest.mark.django_db
def test_an_exchange_is_no_queue_of_that_name(acme: ApiClient, settings: Any) -> None:
    _configure(settings, QUEUE_ALLOW=["exchange:{tenant}-events", "exchange:all"])
    _configure(settings, API_TASKS=["django_durable_tasks.queue_message"])
    for name in ("exchange:acme-events", "exchange:all"):
        body = {"target_type": "QUEUE_MESSAGE", "target_config": {"queue": name, "body": "x"}}
        assert acme.post("/tasks", body).status_code == 422
