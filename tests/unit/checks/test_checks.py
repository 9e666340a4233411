"""Each system check reports its error with its id and a remedy, and reports nothing for valid
settings.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_app
from django.contrib.auth.models import Group
from django.core import checks as django_checks
from django.db import connections
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from kombu import Queue

from django_durable_tasks import checks, registry
from django_durable_tasks.celery import inspect as celery_inspect
from django_durable_tasks.checks import (
    FINDINGS,
    check_celery,
    check_settings,
    check_tasks,
    retry_queue_findings,
)
from django_durable_tasks.limits.scopes import PerKey, rate_of
from django_durable_tasks.models import Task
from django_durable_tasks.registry import Registered
from django_durable_tasks.routers import DurableTasksRouter
from django_durable_tasks.tasks.options import TaskOptions
from tests.architecture.sources import ROOT
from tests.celery_settings import celery_configured

SHOWN_IN = (
    "tests/database/celery/test_addresses.py",
    "tests/unit/checks/test_checks.py",
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


@pytest.mark.parametrize(
    ("name", "value"),
    [("QUOTAS", {"open_tasks": 9}), ("METRICS_TENANTS", True), ("WATCHDOG_URL", "https://ok.io/")],
)
def test_a_setting_of_an_optional_app_needs_it(
    settings: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    settings.DURABLE_TASKS = {name: value}
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


ROUTER = "django_durable_tasks.routers.DurableTasksRouter"
BOTH = {"db_for_write": "tasks", "db_for_read": "tasks"}


@pytest.mark.parametrize(
    ("routers", "fault"),
    [
        ([], "send writes of Task to 'default'"),
        ([_Router(db_for_write="tasks")], "send reads of Task to 'default'"),
        ([_Router(**BOTH, allow_migrate=False)], "do not let `migrate` create"),
        ([_Router(db_for_write="tasks", db_for_read="replica")], None),
        ([ROUTER], None),
        ([_Router(db_for_read="default"), ROUTER], "send reads of Task"),
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


@pytest.mark.parametrize("routers", [[], [_Router(db_for_read="replica")], [ROUTER]])
def test_a_single_database_needs_no_router_and_may_have_a_replica(
    settings: Any, routers: list[Any]
) -> None:
    settings.DATABASE_ROUTERS = routers
    assert _ids(check_settings) == []


def test_the_router_answers_for_models_of_the_package_only(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings, "tasks", connections.settings["default"])
    settings.DURABLE_TASKS = {"DATABASE": "tasks"}
    router = DurableTasksRouter()
    assert (router.db_for_read(Task), router.db_for_write(Task)) == ("tasks", "tasks")
    assert router.allow_migrate("tasks", "django_durable_tasks") is True
    assert router.allow_relation(Task(), Task()) is True
    assert router.allow_migrate("default", "django_durable_tasks") is False
    assert (router.db_for_read(Group), router.db_for_write(Group)) == (None, None)
    assert router.allow_migrate("tasks", "auth") is None
    assert router.allow_relation(Task(), Group()) is None


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

    def hold(function: Any = None, **options: Any) -> None:
        celery_inspect.load_tasks()
        options_of_task = TaskOptions(name="shop.tasks.sell", **options)
        known = Registered(options_of_task, inspect.signature(hold), function or hold)
        monkeypatch.setattr(registry, "_tasks", {"shop.tasks.sell": known})

    return hold


def test_a_lease_shorter_than_two_heartbeats_is_an_error(only_task: Callable[..., None]) -> None:
    only_task(lease=29.0)
    [message] = check_tasks()
    assert "shop.tasks.sell" in message.msg
    assert _ids(check_tasks) == ["E006"]
    only_task(lease=30.0)
    assert _ids(check_tasks) == []


@given(
    name=st.sampled_from(["token", "password", "customer_api_key", "customer", "order"]),
    template=st.sampled_from(
        ["{%s}", "{task}:{%s}", "{order[%s]}", "{order[x][%s]:.20}", "{0}{%s!r}"]
    ),
    of=st.sampled_from(["unique", "max_concurrency", "rate_limit"]),
)
@example(name="token", template="{task}:{%s}", of="unique")
@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_key_that_contains_a_secret_argument_is_a_warning(
    only_task: Callable[..., None], name: str, template: str, of: str
) -> None:
    key: Any = template % name
    numbers: dict[str, Any] = {"max_concurrency": 1, "rate_limit": "1/s"}
    only_task(**{of: key if of == "unique" else PerKey(numbers[of], key)})
    is_secret = name not in ("customer", "order")
    assert _ids(check_tasks) == (["W023"] if is_secret else [])


def test_a_positional_argument_of_a_key_is_named_by_its_parameter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pay(customer: str, *tokens: str) -> None: ...

    for template, number in (("{0}", 0), ("{1}", 1), ("{2}", 1), ("{}-{}", 1)):
        options = TaskOptions(name="shop.tasks.pay", unique=template)
        known = Registered(options, inspect.signature(pay), pay)
        monkeypatch.setattr(registry, "_tasks", {"shop.tasks.pay": known})
        assert _ids(check_tasks) == ["W023"] * number


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
    monkeypatch.setattr(checks, "on_sqlite", lambda: True)
    assert _ids(check_tasks) == ["W011"]
    monkeypatch.setattr(checks, "on_sqlite", lambda: False)
    assert _ids(check_tasks) == []


def test_a_long_list_of_names_is_truncated() -> None:
    assert checks.listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


def _with_broker(url: str, **options: Any) -> dict[str, Any]:
    return {"broker_url": url, "broker_transport_options": options}


def test_a_valid_celery_configuration_has_no_findings(only_task: Callable[..., None]) -> None:
    only_task()
    assert _ids(check_celery) == []


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({"accept_content": ["json", "pickle"]}, ["W021"]),
        ({"accept_content": ["json", "application/x-yaml"]}, ["W021"]),
        ({"task_serializer": "pickle"}, ["W021"]),
        (
            {
                "accept_content": ["json", "pickle"],
                "task_serializer": "pickle",
                "result_serializer": "pickle",
            },
            ["W021"],
        ),
        ({"result_serializer": "yaml"}, ["W021"]),
        ({"accept_content": ["msgpack"]}, ["E009"]),
        ({"accept_content": ["application/json"]}, []),
        ({"broker_url": "filesystem://"}, ["E010"]),
        ({"broker_url": "durable-filesystem://"}, ["E019"]),
        (_with_broker("durable-filesystem://", data_folder="messages"), ["E019"]),
        (_with_broker("durable-filesystem://", data_folder="/messages"), []),
        ({"broker_url": "durable-filesystem:///messages"}, []),
        ({"broker_url": "redis://localhost/0"}, []),
        (_with_broker("redis://localhost/0", visibility_timeout=59), ["W001"]),
        (_with_broker("redis://localhost/0", visibility_timeout=60), []),
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


def test_an_async_function_is_cancelled_in_threads(only_task: Callable[..., None]) -> None:
    async def sell() -> None: ...

    for pool, expected in (("threads", []), ("solo", []), ("gevent", ["W004"])):
        only_task(timeout=5.0, function=sell)
        with celery_configured(worker_pool=pool):
            assert _ids(check_celery) == expected


def test_the_longest_lease_of_a_task_is_used(only_task: Callable[..., None]) -> None:
    only_task(lease=3_601.0)
    with celery_configured(broker_url="redis://localhost/0"):
        assert _ids(check_celery) == ["W001"]


def test_an_old_kombu_is_an_error(
    monkeypatch: pytest.MonkeyPatch, only_task: Callable[..., None]
) -> None:
    only_task()
    assert _ids(check_celery) == []
    monkeypatch.setattr(checks, "OLDEST_KOMBU", (99,))
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


_SETTINGS = """
SECRET_KEY = "only for tests"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django_durable_tasks", *%r]
"""


_CELERY = """
from celery import Celery
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""


def _checked(
    folder: Path, settings: str = "", *, module: str = "shop_settings", **files: str
) -> str:
    """Run Django's checks in a project with these files, and return their output."""
    apps = ["shop"] if files else []
    if module == "shop.settings":
        files = {**files, "settings": _SETTINGS % apps + settings}
    else:
        (folder / f"{module}.py").write_text(_SETTINGS % apps + settings)
    if files:
        (folder / "shop").mkdir()
        for name, text in files.items():
            (folder / "shop" / f"{name}.py").write_text(text)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TEST_", "CELERY_"))
    }
    environment |= {
        "DJANGO_SETTINGS_MODULE": module,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
    }
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "check"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = answer.stdout + answer.stderr
    assert "Traceback" not in said, said
    return said


WIRED = {"__init__": "from shop.celery import app as celery_app", "celery": _CELERY}


# Checks of whole projects, run as `manage.py check` runs them.


def test_a_project_without_a_celery_application_gets_one_from_its_settings(tmp_path: Path) -> None:
    assert "durable_tasks.W009" in _checked(tmp_path)
    assert "no issues" in _checked(
        tmp_path, "CELERY_BROKER_URL = 'durable-filesystem:///var/shop'\n"
    )


def test_a_celery_module_that_is_not_imported_is_an_error_with_instructions(
    tmp_path: Path,
) -> None:
    said = _checked(tmp_path, module="shop.settings", **{**WIRED, "__init__": ""})
    assert "durable_tasks.E007" in said
    assert "app.autodiscover_tasks()" in said


def test_an_application_that_is_current_in_one_thread_only_does_not_count(tmp_path: Path) -> None:
    early = "from celery import current_app; current_app.conf; " + WIRED["__init__"]
    assert "durable_tasks.E007" in _checked(tmp_path, **{**WIRED, "__init__": early})


def test_a_valid_project_has_no_findings(tmp_path: Path) -> None:
    settings = (
        "CELERY_BROKER_URL = 'durable-filesystem:///var/shop'\nCELERY_WORKER_PREFETCH_MULTIPLIER"
        " = 1\n"
    )
    assert "no issues" in _checked(tmp_path, settings, **WIRED)


def test_a_project_without_a_broker_is_warned_of_this_alone(tmp_path: Path) -> None:
    """The queues of the RabbitMQ that Celery would try are no second finding."""
    said = _checked(tmp_path, "CELERY_WORKER_PREFETCH_MULTIPLIER = 1\n", **WIRED)
    assert set(re.findall(r"durable_tasks\.[EW]\d+", said)) == {"durable_tasks.W009"}


def test_a_broker_in_the_database_needs_its_app(tmp_path: Path) -> None:
    url = "CELERY_BROKER_URL = 'durable-database://default'\n"
    assert "durable_tasks.E025" in _checked(tmp_path, url)


def test_a_project_with_the_app_of_the_transport_needs_no_other_setting(tmp_path: Path) -> None:
    more = (
        "INSTALLED_APPS += ['django_durable_tasks.contrib.database_transport']\n"
        "DATABASES['default']['NAME'] = 'shop.sqlite3'\n"
    )
    assert "no issues" in _checked(tmp_path, more)


def test_a_task_module_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    said = _checked(tmp_path, **WIRED, tasks="raise LookupError('no such shop')")
    assert "durable_tasks.E018" in said
    assert "LookupError: no such shop" in said


def test_an_invalid_task_option_is_an_error_with_the_valid_one(tmp_path: Path) -> None:
    tasks = (
        "from django_durable_tasks import durable_task\n@durable_task(time_limit=5)\ndef sell():"
        " ...\n"
    )
    said = _checked(tmp_path, **WIRED, tasks=tasks)
    assert "durable_tasks.E018" in said
    assert "no option 'time_limit'. Write timeout=" in said


# The settings of HTTP callbacks and queue messages are checked.


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"HTTP_ALLOW": "10.0.0.0/8"}, "give a list of hosts"),
        ({"HTTP_ALLOW": ["10.0.0.0/33"]}, "give a host, host:port or a network"),
        ({"HTTP_ALLOW": ["http://host"]}, "give a host"),
        ({"HTTP_PORTS": [0]}, "give a list of ports"),
        ({"HTTP_PORTS": 443}, "give a list of ports"),
        ({"HTTP_SIGNING_KEYS": ["short"]}, "at least 32 characters"),
        ({"QUEUE_ALLOW": "invoices"}, "give a list of names"),
        ({"HTTP_TIMEOUT": 0}, "give seconds > 0"),
        ({"NOTIFICATION_EMAIL_ALLOW": "*@example.com"}, "give a list of names"),
        ({"HTTP_RETRY_QUEUE": ""}, "give a non-empty text"),
        ({"WATCHDOG_URL": "ftp://example.com/"}, "http:// or https://"),
        ({"WATCHDOG_URL": "http://10.0.0.1/"}, "not a public address"),
    ],
)
def test_an_unusable_setting_is_reported(given: dict[str, Any], part: str, settings: Any) -> None:
    settings.DURABLE_TASKS = given
    found = check_settings()
    assert [one.id for one in found] == ["durable_tasks.E001"]
    assert part in found[0].msg
    assert "short" not in found[0].msg.replace("shortest", "")


def test_usable_settings_are_accepted(settings: Any) -> None:
    settings.DURABLE_TASKS = {
        "HTTP_ALLOW": ["billing.internal:8080", "10.1.0.0/16", "fd00::/8", "[fd00::1]:8080", "::1"],
        "HTTP_PORTS": (443,),
        "HTTP_SIGNING_KEYS": ["k" * 32],
        "QUEUE_ALLOW": ("invoices", "exchange:events"),
    }
    assert not [one for one in check_settings() if one.id == "durable_tasks.E001"]


@pytest.mark.parametrize(("queue", "expected"), [("retries", []), ("nowhere", ["E021"])])
def test_a_retry_queue_that_is_not_declared_is_an_error(queue: str, expected: list[str]) -> None:
    before = current_app._get_current_object()
    app = Celery("retries", set_as_current=False, broker="memory://")
    app.conf.update(task_queues=[Queue("retries")], task_create_missing_queues=False)
    app.set_current()
    try:
        found = retry_queue_findings(queue)
        assert [one.id for one in found] == [f"durable_tasks.{name}" for name in expected]
    finally:
        before.set_current()
