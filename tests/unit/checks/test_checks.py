"""Each system check reports its error with its id and a remedy, and reports nothing for valid
settings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core import checks as django_checks
from django.db import connections

from django_durable_tasks import checks, registry
from django_durable_tasks.celery import inspect as celery_inspect
from django_durable_tasks.checks import (
    FINDINGS,
    check_celery,
    check_settings,
    check_tasks,
    configuration,
)
from django_durable_tasks.limits.scopes import PerKey, rate_of
from django_durable_tasks.models import Task
from django_durable_tasks.registry import Registered
from django_durable_tasks.routers import DurableTasksRouter
from django_durable_tasks.tasks.options import TaskOptions
from tests.architecture.sources import ROOT
from tests.celery_settings import celery_configured
from tests.unit.checks.checked_projects import WIRED, _checked

SHOWN_IN = (
    "tests/unit/checks/test_http_settings.py",
    "tests/database/celery/test_addresses.py",
    "tests/unit/checks/test_checks.py",
    "tests/unit/checks/test_checks_of_projects.py",
    "tests/unit/recurring/test_declarations.py",
    "tests/database/checks/test_database_checks.py",
    "tests/database/db/test_exact_columns.py",
    "tests/database/recurring/test_default_zone.py",
)


def _ids(check: Callable[..., list[Any]]) -> list[str]:
    return [message.id.removeprefix("durable_tasks.") for message in check()]


def test_valid_settings_have_no_findings() -> None:
    assert _ids(check_settings) == []


@pytest.mark.parametrize(
    "raw", [{"LEESE": 60}, {"LEASE": 0}, {"LEASE": 20, "HEARTBEAT": 15}, {"RETENTION": {"X": 1}}]
)
def test_invalid_settings_are_an_error_with_the_reason(settings: Any, raw: dict[str, Any]) -> None:
    settings.DURABLE_TASKS = raw
    [message] = check_settings()
    assert message.id == "durable_tasks.E001"
    assert "DURABLE_TASKS" in message.msg
    assert _ids(check_settings) == ["E001"]
    assert isinstance(check_tasks(), list)
    assert isinstance(check_celery(), list)


@pytest.mark.parametrize(
    "defaults", [{"unique": "{task}"}, {"max_attempts": 0}, [("max_attempts", 3)]]
)
def test_invalid_task_defaults_are_an_error(settings: Any, defaults: Any) -> None:
    settings.DURABLE_TASKS = {"TASK_DEFAULTS": defaults}
    [message] = check_settings()
    assert message.id == "durable_tasks.E001"
    assert "DURABLE_TASKS['TASK_DEFAULTS']" in message.msg


@pytest.mark.parametrize("name", ["METRICS", "NOTIFICATIONS"])
def test_a_setting_of_an_optional_app_needs_it(
    settings: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings.DURABLE_TASKS = {name: True}
    assert _ids(check_settings) == []
    monkeypatch.setattr("django.apps.apps.is_installed", lambda name: False)
    assert _ids(check_settings) == ["W022"]


def test_an_unknown_notification_database_is_an_error(settings: Any) -> None:
    settings.DURABLE_TASKS = {"LISTEN_DATABASE": "direct"}
    [message] = check_settings()
    assert "DATABASES does not have it (it has: default)" in message.msg
    assert _ids(check_settings) == ["E015"]


def test_a_notification_database_without_notify_is_an_error(settings: Any) -> None:
    settings.DURABLE_TASKS = {"LISTEN_DATABASE": "default"}
    listens = connections["default"].vendor == "postgresql"
    assert _ids(check_settings) == ([] if listens else ["E015"])


def test_an_unknown_database_alias_is_an_error(settings: Any) -> None:
    settings.DURABLE_TASKS = {"DATABASE": "elsewhere"}
    [message] = check_settings()
    assert "'elsewhere'" in message.msg
    assert "default" in message.msg
    assert _ids(check_settings) == ["E002"]
    assert checks.check_database(databases=["default"]) == []


class _Router:
    """A database router that answers the same for all models. Without an argument the method is
    missing.
    """

    def __init__(self, **answers: Any) -> None:
        for method, answer in answers.items():
            setattr(self, method, lambda *_, answer=answer, **__: answer)


@pytest.mark.parametrize(
    ("routers", "fault"),
    [
        ([], "send writes of Task to 'default'"),
        ([_Router(db_for_write="tasks")], "send reads of Task to 'default'"),
        (
            [_Router(db_for_write="tasks", db_for_read="tasks", allow_migrate=False)],
            "do not let `migrate` create",
        ),
        ([_Router(db_for_write="tasks", db_for_read="replica")], None),
        (["django_durable_tasks.routers.DurableTasksRouter"], None),
        (
            [_Router(db_for_read="default"), "django_durable_tasks.routers.DurableTasksRouter"],
            "send reads of Task",
        ),
    ],
)
def test_routers_that_route_models_away_from_the_engine_are_an_error(
    settings: Any, monkeypatch: pytest.MonkeyPatch, routers: list[Any], fault: str | None
) -> None:
    monkeypatch.setitem(connections.settings, "tasks", connections.settings["default"])
    settings.DURABLE_TASKS = {"DATABASE": "tasks"}
    settings.DATABASE_ROUTERS = routers
    assert _ids(check_settings) == ([] if fault is None else ["E016"])
    assert fault is None or fault in check_settings()[0].msg


def test_a_single_database_needs_no_router_and_may_have_a_replica(settings: Any) -> None:
    for routers in (
        [],
        [_Router(db_for_read="replica")],
        ["django_durable_tasks.routers.DurableTasksRouter"],
    ):
        settings.DATABASE_ROUTERS = routers
        assert _ids(check_settings) == []


def test_the_router_answers_for_models_of_the_package_only(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings, "tasks", connections.settings["default"])
    settings.DURABLE_TASKS = {"DATABASE": "tasks"}
    router = DurableTasksRouter()
    assert (router.db_for_read(Task), router.db_for_write(Task)) == ("tasks", "tasks")
    assert (
        router.allow_migrate("tasks", "django_durable_tasks"),
        router.allow_relation(Task(), Task()),
    ) == (True, True)
    assert router.allow_migrate("default", "django_durable_tasks") is False
    assert (router.db_for_read(Group), router.db_for_write(Group)) == (None, None)
    assert (router.allow_migrate("tasks", "auth"), router.allow_relation(Task(), Group())) == (
        None,
        None,
    )


def test_naive_datetimes_are_reported(settings: Any) -> None:
    settings.USE_TZ = False
    assert _ids(check_settings) == ["W020"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"NODE_TIMEOUT": 9, "NODE_HEARTBEAT": 5}, ["E004"]),
        *[
            ({"NODE_TIMEOUT": 10, "HEARTBEAT": beat}, found)
            for beat, found in ((5, []), (6, ["E020"]))
        ],
        ({"NODE_HEARTBEAT": 31}, ["E004"]),
        ({"LEADER_LEASE": 3, "LEADER_RENEW": 2}, ["E005"]),
        ({"LEADER_LEASE": 4, "LEADER_RENEW": 2}, []),
        ({"LEADER_RENEW": 11}, ["E005"]),
    ],
)
def test_deadlines_shorter_than_two_heartbeats_are_an_error(
    settings: Any, raw: dict[str, Any], expected: list[str]
) -> None:
    settings.DURABLE_TASKS = raw
    assert _ids(check_settings) == expected


@pytest.fixture
def only_task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Register exactly one durable task with these options."""

    def hold(**options: Any) -> None:
        celery_inspect.load_tasks()
        known = Registered(
            TaskOptions(name="shop.tasks.sell", **options), inspect.signature(hold), hold
        )
        monkeypatch.setattr(registry, "_tasks", {"shop.tasks.sell": known})

    return hold


def test_a_lease_shorter_than_two_heartbeats_is_an_error(only_task: Callable[..., None]) -> None:
    only_task(lease=29.0)
    [message] = check_tasks()
    assert "shop.tasks.sell" in message.msg
    assert _ids(check_tasks) == ["E006"]
    only_task(lease=30.0)
    assert _ids(check_tasks) == []


@pytest.mark.parametrize(
    ("options", "limits", "scope"),
    [
        ({"weight": 3, "max_concurrency": 2}, None, "task:shop.tasks.sell is 2"),
        ({"weight": 3, "max_concurrency": PerKey(2, "{0}")}, None, "of its key is 2"),
        ({"weight": 3}, {"queue:post": {"max_concurrency": 2}}, "queue:post is 2"),
        ({"weight": 3}, {"global": {"rate": "1/s", "burst": 2}}, "global is 2"),
    ],
)
def test_a_task_heavier_than_a_whole_limit_in_code_is_a_warning(
    only_task: Callable[..., None], settings: Any, options: dict[str, Any], limits: Any, scope: str
) -> None:
    settings.DURABLE_TASKS = {"LIMITS": limits}
    only_task(queue="post", **options)
    (found,) = check_tasks()
    assert found.id == "durable_tasks.W013"
    assert scope in found.msg


@pytest.mark.parametrize(
    "options",
    [
        {"weight": 3, "rate_limit": rate_of("rate_limit", "10/m")},
        {"weight": 2, "max_concurrency": 2},
    ],
)
def test_a_task_within_its_limits_has_no_finding(
    only_task: Callable[..., None], options: dict[str, Any]
) -> None:
    only_task(**options)
    assert _ids(check_tasks) == []


def test_an_atomic_body_on_a_file_is_a_warning(
    only_task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_task(atomic=True)
    monkeypatch.setattr(configuration, "on_sqlite", lambda: True)
    assert _ids(check_tasks) == ["W011"]
    monkeypatch.setattr(configuration, "on_sqlite", lambda: False)
    assert _ids(check_tasks) == []


def test_a_long_list_of_names_is_truncated() -> None:
    assert configuration.listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_a_valid_celery_configuration_has_no_findings(only_task: Callable[..., None]) -> None:
    only_task()
    assert _ids(check_celery) == []


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({"accept_content": ["json", "pickle"]}, ["W021"]),
        ({"accept_content": ["json", "application/x-yaml"]}, ["W021"]),
        ({"task_serializer": "pickle"}, ["W021"]),
        ({"result_serializer": "yaml"}, ["W021"]),
        ({"accept_content": ["msgpack"]}, ["E009"]),
        ({"accept_content": ["application/json"]}, []),
        ({"broker_url": "filesystem://"}, ["E010"]),
        ({"broker_url": "durable-filesystem://"}, ["E019"]),
        (
            {
                "broker_url": "durable-filesystem://",
                "broker_transport_options": {"data_folder": "messages"},
            },
            ["E019"],
        ),
        (
            {
                "broker_url": "durable-filesystem://",
                "broker_transport_options": {"data_folder": "/messages"},
            },
            [],
        ),
        ({"broker_url": "durable-filesystem:///messages"}, []),
        ({"broker_url": "redis://localhost/0"}, []),
        (
            {
                "broker_url": "redis://localhost/0",
                "broker_transport_options": {"visibility_timeout": 59},
            },
            ["W001"],
        ),
        (
            {
                "broker_url": "redis://localhost/0",
                "broker_transport_options": {"visibility_timeout": 60},
            },
            [],
        ),
        ({"task_always_eager": True}, ["W002"]),
        ({"task_always_eager": True, "task_eager_propagates": True}, ["W002", "W003"]),
        ({"task_eager_propagates": True}, []),
        ({"worker_prefetch_multiplier": 4}, ["W005"]),
        ({"task_acks_late": True}, ["W006"]),
        ({"task_reject_on_worker_lost": True}, ["W007"]),
        *(
            (
                {
                    "broker_url": f"{broker}://localhost/",
                    "control_queue_exclusive": exclusive,
                    "event_queue_exclusive": True,
                },
                expected,
            )
            for broker, exclusive, expected in [
                ("amqp", False, ["W018"]),
                ("amqps", False, ["W018"]),
                ("amqp", True, []),
                ("redis", False, []),
            ]
        ),
        ({"broker_url": "amqp://localhost/", "control_queue_exclusive": True}, []),
    ],
)
def test_invalid_celery_settings_are_reported(
    only_task: Callable[..., None], configured: dict[str, Any], expected: list[str]
) -> None:
    only_task()
    with celery_configured(**configured):
        assert _ids(check_celery) == expected


@pytest.mark.parametrize(
    ("allowed", "api_queues", "reported"),
    [
        ("invoices", [], False),
        ("customer.{tenant}", ["customer.{tenant}"], True),
        ("customer.{tenant}", ["customer.*"], True),
        ("customer.{tenant}", ["other.{tenant}"], False),
        ("{tenant}", [], True),  # The default queue is `celery`, which could be a slug.
        ("exchange:routed", [], True),
        ("routed", [], True),
    ],
)
def test_a_queue_for_messages_that_tasks_use_is_a_warning(
    only_task: Callable[..., None],
    settings: Any,
    allowed: str,
    api_queues: list[str],
    reported: bool,
) -> None:
    only_task()
    settings.DURABLE_TASKS = {"QUEUE_ALLOW": [allowed], "API_QUEUES": api_queues}
    with celery_configured(task_routes={"a.*": {"queue": "routed"}}):
        assert _ids(check_celery) == (["W019"] if reported else [])


@pytest.mark.parametrize("limits", [{"timeout": 10.0}, {"soft_timeout": 5.0}])
def test_a_pool_that_cannot_interrupt_a_body_is_a_warning(
    only_task: Callable[..., None], limits: dict[str, float]
) -> None:
    only_task(**limits)
    assert _ids(check_celery) == []
    for pool in ("threads", "solo", "gevent", "eventlet"):
        with celery_configured(worker_pool=pool):
            assert _ids(check_celery) == ["W004"]
    only_task()
    with celery_configured(worker_pool="threads"):
        assert _ids(check_celery) == []


def test_the_longest_lease_of_a_task_is_used(only_task: Callable[..., None]) -> None:
    only_task(lease=3_601.0)
    with celery_configured(broker_url="redis://localhost/0"):
        assert _ids(check_celery) == ["W001"]


def test_an_old_kombu_is_an_error(
    monkeypatch: pytest.MonkeyPatch, only_task: Callable[..., None]
) -> None:
    only_task()
    assert _ids(check_celery) == []
    monkeypatch.setattr(configuration, "OLDEST_KOMBU", (99,))
    assert _ids(check_celery) == ["E011"]


def test_task_modules_are_imported_for_the_checks(tmp_path: Path) -> None:
    tasks = (
        "from django_durable_tasks import durable_task\n@durable_task(lease=5)\ndef sell(): ...\n"
    )
    said = _checked(tmp_path, **WIRED, tasks=tasks)
    assert "durable_tasks.E006" in said
    assert "shop.tasks.sell" in said


def test_no_check_connects_except_that_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a check connected")

    monkeypatch.setattr(connections["default"], "connect", refuse)
    for check in (check_settings, check_tasks, check_celery):
        check(databases=None)
    assert checks.check_database(databases=None) == []


def test_django_runs_all_checks() -> None:
    registered = {
        getattr(check, "__name__", "") for check in django_checks.registry.registry.get_checks()
    }
    assert {"check_settings", "check_tasks", "check_celery", "check_database"} <= registered


def test_every_finding_has_a_remedy() -> None:
    for finding in FINDINGS.values():
        assert len(finding.hint) > 10
        assert finding.full_id == f"durable_tasks.{finding.id}"
    assert list(FINDINGS) == sorted(FINDINGS)


def test_every_finding_is_tested() -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in SHOWN_IN)
    missing = [
        finding.id for finding in FINDINGS.values() if not re.search(rf"[\".]{finding.id}\b", text)
    ]
    assert missing == []
