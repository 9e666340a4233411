"""Operator limits: commands, admin page, the explanation of a waiting task, validation."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.test import Client, override_settings

from django_durable_tasks import PerKey, checks, conf, process_state
from django_durable_tasks.celery.inspect import sentences
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits import backpressure, config
from django_durable_tasks.models import Limit, Task
from django_durable_tasks.store.clock import database_now
from tests.database.commands.durable_command import durable, json_of
from tests.factories import NOOP, QUEUE, a_task, a_tenant, many_tasks
from tests.messages import claim_due
from tests.process_state import new_process_state

pytestmark = pytest.mark.django_db
SCOPE = f"task:{NOOP}"


def _claim() -> int:
    new_process_state()
    return len(claim_due(QUEUE, database_now(), 100, uuid.uuid4()))


def _explained(row: Task) -> str:
    row.refresh_from_db()
    return " ".join(sentence.text for sentence in sentences(row))


def test_a_limit_is_set_listed_and_removed() -> None:
    many_tasks(3)
    assert (
        durable(
            "limit", "set", SCOPE, "--max-concurrency", "1", "--rate", "10/m", "--reason", "slow"
        ).code
        == 0
    )
    row = Limit.objects.get()
    assert (row.scope, row.max_concurrency, row.rate, row.comment) == (SCOPE, 1, "10/m", "slow")
    assert row.set_by
    assert _claim() == 1
    (standing,) = [one for one in json_of("limit", "list") if one["scope"] == SCOPE]
    assert (standing["source"], standing["taken"], standing["waiting"]) == ("OPERATOR", 1, 2)
    assert json_of("limit", "remove", SCOPE)["removed"] is True
    assert durable("limit", "remove", SCOPE).code == 2
    assert not Limit.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["set", "shop.mail", "--max-concurrency", "1"], "no scope"),
        (["set", "tenant:acme", "--max-concurrency", "1"], "no scope"),
        (["set", SCOPE], "max_concurrency"),
        (["set", SCOPE, "--rate", "often"], "such as '10/m'"),
        (["set", SCOPE, "--max-concurrency", "-1"], "0 or more"),
        (["set", SCOPE, "--max-concurrency", "1", "--burst", "2"], "burst and no rate"),
        (["remove"], "Name the scope"),
    ],
)
def test_an_invalid_limit_is_refused(arguments: list[str], expected: str) -> None:
    answer = durable("limit", *arguments)
    assert answer.code == 2
    assert expected in answer.err
    assert not Limit.objects.exists()


def test_a_waiting_task_names_the_limit_it_waits_for() -> None:
    rows = many_tasks(3)
    Limit.objects.create(scope=SCOPE, max_concurrency=2)
    _claim()
    (waiting,) = [row for row in rows if Task.objects.filter(pk=row.pk, waiting_for_limit=SCOPE)]
    assert f"It waits for the limit {SCOPE}, 2 of 2 taken." in _explained(waiting)


def test_a_task_of_a_full_queue_names_its_position() -> None:
    many_tasks(2)
    Limit.objects.create(scope=f"queue:{QUEUE}", max_concurrency=1)
    _claim()
    assert f"It waits for the limit queue:{QUEUE}, 1 of 1 taken." in _explained(
        Task.objects.pending().get()
    )


def test_a_task_over_its_tenants_share_says_so() -> None:
    noisy = a_tenant()
    many_tasks(30, tenant=noisy)
    with override_settings(DURABLE_TASKS={"QUEUE_WINDOW": 20}):
        new_process_state()
        backpressure.snapshot()
        claim_due(QUEUE, database_now(), 20, uuid.uuid4())
    assert f"fair share of queue {QUEUE}" in _explained(Task.objects.waiting_for_limit()[0])


def test_status_shows_how_many_tasks_wait_for_which_limit() -> None:
    many_tasks(4)
    Limit.objects.create(scope=SCOPE, max_concurrency=1)
    _claim()
    assert (
        f"3 tasks wait for the limit {SCOPE}, 1 of 1 taken."
        in durable("status", "--format", "json").data["warnings"]
    )


# Code and settings --------------------------------------------------------------------------------


def test_an_operator_limit_overrides_settings() -> None:
    many_tasks(4)
    with override_settings(DURABLE_TASKS={"LIMITS": {SCOPE: {"max_concurrency": 1}}}):
        assert _claim() == 1
        Limit.objects.create(scope=SCOPE, max_concurrency=3)
        process_state.of(config.RecentLimits).expire()
        Task.objects.unguarded().waiting_for_limit().update(
            waiting_for_limit=None, due_at=database_now()
        )
        assert _claim() == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"mail": {"rate": "1/s"}},
        {"global": {}},
        {"global": {"rate": "fast"}},
        {"global": {"speed": 1}},
        {"global": 5},
    ],
)
def test_a_check_reports_invalid_limits_in_settings(wrong: Any) -> None:
    with override_settings(DURABLE_TASKS={"LIMITS": wrong}):
        found = [message for message in checks.check_settings() if "LIMITS" in message.msg]
        assert [message.id for message in found] == ["durable_tasks.E001"]
        with pytest.raises(conf.InvalidSetting, match="LIMITS"):
            config.coded()


@pytest.mark.parametrize(("number", "key"), [(-1, "{0}"), (1, ""), (True, "{0}")])
def test_the_number_for_each_key_is_validated(number: int, key: str) -> None:
    with pytest.raises(InvalidOption):
        PerKey(number, key)


# The admin ----------------------------------------------------------------------------------------


@pytest.fixture
def operator(client: Client) -> Client:
    """Return a client logged in as a superuser."""
    client.force_login(User.objects.create_superuser("ann", password="x"))
    return client


def test_the_admin_sets_changes_and_removes_a_limit(operator: Client) -> None:
    pages = "/admin/django_durable_tasks/limit/"
    form = {
        "scope": "queue:mail",
        "max_concurrency": "5",
        "rate": "",
        "burst": "",
        "comment": "asked for",
    }
    assert operator.post(f"{pages}add/", form).status_code == 302
    assert Limit.objects.get().set_by == "ann"
    assert b"queue:mail" in operator.get(pages).content
    change = f"{pages}queue_3Amail/change/"
    opened = operator.get(change).context["adminform"].form["opened"].value()
    assert (
        operator.post(change, {**form, "max_concurrency": "7", "opened": opened}).status_code == 302
    )
    assert Limit.objects.get().max_concurrency == 7
    refused = operator.post(f"{pages}add/", {**form, "scope": "mail"})
    assert b"is no scope of a limit" in refused.content
    assert operator.post(f"{pages}queue_3Amail/delete/", {"post": "yes"}).status_code == 302
    assert not Limit.objects.exists()


@pytest.mark.parametrize(
    ("scope", "most", "expected"),
    [
        ("queue:biling", "1", "No queue with the name biling exists"),
        ("task:shop.tasks.gone", "1", "No task with the name shop.tasks.gone exists"),
        ("tenant:999", "1", "No tenant with the name 999 exists"),
        ("queue:mail", "0", "no task starts"),
        ("queue:mail", "1", ""),
        ("task:tests.project.tasks.add", "1", ""),
        ("tenant:1", "1", ""),
        ("global", "1", ""),
    ],
)
def test_a_limit_that_matches_nothing_or_stops_everything_is_saved_with_a_warning(
    operator: Client, scope: str, most: str, expected: str
) -> None:
    a_task(queue="mail")
    form = {"scope": scope, "max_concurrency": most, "rate": "", "burst": "", "comment": ""}
    answer = operator.post("/admin/django_durable_tasks/limit/add/", form)
    warnings = [str(one) for one in get_messages(answer.wsgi_request) if one.level_tag == "warning"]
    assert Limit.objects.filter(pk=scope).exists()
    assert len(warnings) == bool(expected)
    assert expected in "".join(warnings)


def test_the_list_of_tasks_shows_the_limit_that_a_task_waits_for(operator: Client) -> None:
    many_tasks(2)
    Limit.objects.create(scope=SCOPE, max_concurrency=1)
    _claim()
    page = operator.get("/admin/django_durable_tasks/task/").content.decode()
    assert f"limit {SCOPE}" in page
    a_task()
