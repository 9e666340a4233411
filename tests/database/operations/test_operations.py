"""Every operation of the registry is offered in the admin and on the command line, with the same
title, permission and confirmation, and nothing else changes anything there.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.db.models import Q
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.admin.readonly import DurableModelAdmin
from django_durable_tasks.choices import AuditSource, Status
from django_durable_tasks.command.subcommand import Subcommand
from django_durable_tasks.contrib.api import urls as api_urls
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.management.commands.durable import SUBCOMMANDS
from django_durable_tasks.models import (
    AuditEntry,
    DeadLetter,
    RecurringTask,
    Task,
    TaskDependency,
    Tenant,
    WorkflowRun,
)
from django_durable_tasks.operations import APP, OPERATIONS, Operation, Reason, Target
from tests.database.admin.site import operator
from tests.database.api.client import SETTINGS, a_client
from tests.database.commands.durable_command import Answer, durable, parsers
from tests.database.operations.cases import CASES, entries_of, key_of, perform
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_dead_letter, a_task
from tests.project.tasks import add

pytestmark = pytest.mark.django_db
CHANGING = [one for one in SUBCOMMANDS.values() if one.operations]
WAITING = ("dev", "shadow")
"""Subcommands that wait: for Ctrl-C, and for the fires of django-celery-beat. Their own tests run
them.
"""
READING = [one for one in SUBCOMMANDS.values() if not (one.operations or one.name in WAITING)]
DJANGO_DELETES = {"limit", "tenant"}
"""Models with Django's own delete action. That of limits performs ``limit.remove``."""


def _model_admins() -> list[DurableModelAdmin]:
    return [one for one in admin.site._registry.values() if isinstance(one, DurableModelAdmin)]


def _actions(model_admin: DurableModelAdmin) -> dict[str, Operation | None]:
    return {
        one if isinstance(one, str) else one.__name__: getattr(one, "operation", None)
        for one in model_admin.actions or ()
    }


def _offered(model_admin: DurableModelAdmin) -> set[Operation]:
    return {
        *model_admin.operations,
        *(one for one in _actions(model_admin).values() if one is not None),
    }


def _request(user: User) -> Any:
    request = RequestFactory().get("/")
    request.user = user
    return request


def test_an_operation_is_offered_by_each_interface_or_gives_a_reason() -> None:
    actions = [
        getattr(pattern.callback.cls, action)
        for pattern in api_urls.urlpatterns
        for action in pattern.callback.actions.values()
        if hasattr(getattr(pattern.callback.cls, action), "endpoint")
    ]
    in_admin = set[Operation]().union(*map(_offered, _model_admins()))
    in_command = {operation for one in CHANGING for operation in one.operations}
    in_api = {operation for action in actions for operation in action.endpoint.operations}
    for key, operation in OPERATIONS.items():
        assert (operation in in_admin) != bool(operation.not_in_admin), key
        assert (operation in in_command) != bool(operation.not_in_command), key
        assert (operation in in_api) != bool(operation.not_in_api), key


@pytest.fixture(autouse=True)
def _switched_on(settings: Any, request: pytest.FixtureRequest) -> None:
    settings.DURABLE_TASKS = dict(SETTINGS)
    if "rotate_keys" in request.node.name:
        settings.DURABLE_TASKS["ENCRYPTION_KEYS"] = ["a:" + base64.b64encode(b"k" * 32).decode()]


def _shape(entry: AuditEntry) -> tuple[Any, ...]:
    """Return what an entry contains, without ids, times and names."""
    changes = json.dumps([entry.before, entry.after], sort_keys=True)
    for pattern, word in (
        (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", "ID"),
        (r"\d{4}-\d{2}-\d{2}[ T][\d:.]+(\+00:00|Z)?", "TIME"),
        (r"ddt_live_\w+", "KEY"),
        (r"(ada|ann|API key [^:\"]*)(?=[:\"])", "NAME"),
    ):
        changes = re.sub(pattern, word, changes)
    return entry.operation, entry.object_type, entry.count, changes


def _entries(key: str, act: Callable[[Any], Any]) -> list[AuditEntry]:
    """Perform an operation on a new object and return its entries; all of it is rolled back."""
    with transaction.atomic():
        found = CASES[key].make()
        entries = entries_of(lambda: act(found))
        transaction.set_rollback(True)
    return entries


def _performed(key: str, act: Callable[[Any], Any]) -> tuple[AuditEntry, tuple[Any, ...]]:
    (entry,) = _entries(key, act)
    return entry, _shape(entry)


def _by_python(key: str, reason: str = "a test") -> tuple[Any, ...]:
    entry, shape = _performed(key, lambda found: perform(key, found, reason=reason))
    assert (entry.actor, entry.reason, entry.source) == ("ada", reason, AuditSource.CODE)
    return shape


def test_each_operation_has_a_case() -> None:
    assert {*CASES, "installation.sync"} == set(OPERATIONS)


# With the vendor this test runs on each database: it calls the function of each operation.
@pytest.mark.usefixtures("vendor")
@pytest.mark.parametrize("key", CASES)
def test_an_operation_has_one_entry_with_its_name(key: str) -> None:
    entry, _ = _performed(key, lambda found: perform(key, found))
    assert (entry.operation, entry.actor, entry.reason) == (key, "ada", "a test")
    assert entry.before or entry.after
    if not key.startswith("installation."):
        assert entry.object_id or entry.object_ids


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.command])
def test_the_command_line_does_the_same_as_python(key: str) -> None:
    words = CASES[key].command

    def act(found: Any) -> None:
        given = shlex.split(words.format(key=key_of(found)))
        answer = durable(*given, "--by", "ada", "--reason", "a test")
        # 1: no worker has sent the test message of a notification setting.
        assert answer.code == (1 if key == "notification_setting.test" else 0), answer

    entry, shape = _performed(key, act)
    assert (entry.actor, entry.reason, entry.source) == ("ada", "a test", AuditSource.COMMAND)
    assert shape == _by_python(key)


def _dump() -> list[Any]:
    models = (Task, DeadLetter, TaskDependency, WorkflowRun, RecurringTask, ApiKey, AuditEntry)
    return [list(model._base_manager.order_by("pk").values()) for model in models]


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.command])
def test_a_dry_run_on_the_command_line_writes_nothing(key: str) -> None:
    found, words = CASES[key].make(), CASES[key].command
    given = shlex.split(words.format(key=key_of(found)))
    before = _dump()
    answer = durable(*given, "--dry-run", "--reason", "a test")
    operation = OPERATIONS[key]
    if operation.dry_run or operation.target.is_queryset:
        assert answer.code == 0, answer
    else:
        assert "--dry-run" in answer.err
    assert _dump() == before


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.api])
def test_the_api_does_the_same_as_python(key: str) -> None:
    case, client = CASES[key], a_client(Tenant.objects.get())
    method, path = case.api.split()

    def act(found: Any) -> None:
        address, body = path.format(key=key_of(found)), {**case.body, "reason": "a test"}
        version = {"If_Match": client.get(address)["ETag"]} if method == "PATCH" else {}
        answer = client.send(method, address, body, **version)
        assert answer.status_code in (200, 201), answer.content

    entry, shape = _performed(key, act)
    assert (entry.reason, entry.source) == ("a test", AuditSource.API)
    assert entry.actor.startswith("API key")
    assert shape == _by_python(key)


def _named(permission: str) -> Q:
    label, _, codename = permission.rpartition(".")
    return Q(content_type__app_label=label or APP, codename=codename)


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.page])
def test_the_admin_does_the_same_as_python_for_a_user_with_the_permission(key: str) -> None:
    operation, page = OPERATIONS[key], CASES[key].page
    assert page is not None
    user, client = User.objects.create_user("ada", is_staff=True), Client()
    client.force_login(user)
    own, all_ = _named(operation.permission), Permission.objects.all()
    refused = [all_.exclude(own)]
    if operation.target != Target.QUEUE:  # the pages of queues need no permission to view them
        refused.append(all_.filter(own))
    for too_few in refused:
        user.user_permissions.set(too_few)
        assert not _entries(key, lambda found: page(client, found, operation, "a test"))
    user.user_permissions.set(all_.filter(own | Q(codename__startswith="view_")))
    entry, shape = _performed(key, lambda found: page(client, found, operation, "a test"))
    assert (entry.actor, entry.source) == ("ada", AuditSource.ADMIN)
    has_form = operation.confirm or operation.target == Target.QUEUE
    assert entry.reason == ("a test" if has_form else "")
    assert shape == _by_python(key, entry.reason)


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.page])
def test_the_admin_refuses_an_operation_without_a_csrf_token(key: str) -> None:
    page, strict = CASES[key].page, Client(enforce_csrf_checks=True)
    assert page is not None
    strict.force_login(User.objects.create_superuser("ada"))
    found = CASES[key].make()
    assert not entries_of(lambda: page(strict, found, OPERATIONS[key], "a test"))


_OF_QUERYSETS = [
    key
    for key in CASES
    if OPERATIONS[key].target.is_queryset and OPERATIONS[key].applies_to is not None
]
_LIMITED_TO_STATES = [*_OF_QUERYSETS, *(key for key in CASES if OPERATIONS[key].statuses)]
"""The statuses of operations on one object say what its page offers; its function may do less or
nothing in another status, but does not refuse it.
"""


def _unsuitable(key: str) -> Iterator[Any]:
    """Yield objects in each status that does not allow the operation."""
    operation = OPERATIONS[key]
    if operation.target == Target.TASKS:
        rows = [a_task(status, name=add.name, args=[1, "x"]) for status in Status]
        fit = Task.objects.filter(operation.applies_to).values_list("pk", flat=True)
        yield from (row for row in rows if row.pk not in set(fit))
    elif operation.target == Target.DEAD_LETTERS:
        yield a_dead_letter(a_task("CANCELLED"), open=False)
    else:
        found = CASES[key].make()
        statuses = {value for value, _title in found._meta.get_field("status").choices}
        for status in sorted(statuses - set(operation.statuses)):
            type(found).objects.unguarded().filter(pk=found.pk).update(status=status)
            yield type(found).objects.get(pk=found.pk)


@pytest.mark.parametrize("key", [key for key in _LIMITED_TO_STATES if CASES[key].page])
def test_a_page_does_not_perform_an_operation_that_the_status_does_not_allow(key: str) -> None:
    page, client = CASES[key].page, operator("ada")
    assert page is not None
    for found in _unsuitable(key):
        assert not entries_of(lambda: page(client, found, OPERATIONS[key], "a test")), found  # noqa: B023


@pytest.mark.parametrize("key", [key for key in _OF_QUERYSETS if CASES[key].command])
def test_a_subcommand_does_not_perform_an_operation_that_the_status_does_not_allow(
    key: str,
) -> None:
    for found in _unsuitable(key):
        words = shlex.split(CASES[key].command.format(key=key_of(found)))
        answers: list[Answer] = []
        assert not entries_of(lambda: answers.append(durable(*words, "--reason", "a test"))), found  # noqa: B023
        assert answers[0].code == 2, (found, answers)


@pytest.mark.parametrize("key", [key for key in _OF_QUERYSETS if CASES[key].api])
def test_the_api_does_not_perform_an_operation_that_the_status_does_not_allow(key: str) -> None:
    client = a_client(Tenant.objects.get())
    method, path = CASES[key].api.split()
    headers = {"If_Match": "*"} if method == "PATCH" else {}
    for found in _unsuitable(key):
        address, body = path.format(key=key_of(found)), {**CASES[key].body, "reason": "a test"}
        answers: list[Any] = []
        entries = entries_of(
            lambda: answers.append(client.send(method, address, body, **headers))  # noqa: B023
        )
        # The address of a retry replays an ended task.
        assert {entry.operation for entry in entries} <= {"tasks.replay"} - {key}, found
        if not entries:
            answer = answers[0]
            assert answer.status_code == 409, answer.content
            status = getattr(found, "status", None)
            assert answer.json().get("object_status") == status


_WITH_REASON = [key for key, one in OPERATIONS.items() if one.reason != Reason.OPTIONAL]


@pytest.mark.parametrize("key", [key for key in _WITH_REASON if CASES[key].page])
def test_a_form_requires_the_reason_of_an_operation_that_needs_one(key: str) -> None:
    page, found = CASES[key].page, CASES[key].make()
    assert page is not None
    assert not entries_of(lambda: page(operator("ada"), found, OPERATIONS[key], ""))


@pytest.mark.parametrize(
    "key", [key for key in _WITH_REASON if OPERATIONS[key].reason == Reason.REQUIRED]
)
def test_no_interface_performs_an_operation_without_the_reason_that_it_requires(key: str) -> None:
    found = CASES[key].make()

    def act() -> None:
        with pytest.raises(InvalidOption, match="reason"):
            perform(key, found, reason=" ")

    assert not entries_of(act)


@pytest.mark.parametrize(
    "key",
    [key for key in CASES if "dry_run" in inspect.signature(OPERATIONS[key].function).parameters],
)
def test_a_dry_run_changes_nothing(key: str) -> None:
    def state() -> list[Any]:
        return [sorted(map(str, model.objects.values_list())) for model in (Task, RecurringTask)]

    found = CASES[key].make()
    before = state()
    assert not entries_of(lambda: perform(key, found, dry_run=True))
    assert state() == before


def test_an_operation_has_a_django_permission_unless_it_needs_a_shell() -> None:
    for key, operation in OPERATIONS.items():
        if operation.not_in_admin and operation.not_in_api:
            assert not operation.permission, key
        else:
            assert Permission.objects.filter(_named(operation.permission)).exists(), key


def test_the_admin_has_no_other_actions_and_shows_the_titles_of_the_registry() -> None:
    everybody = User.objects.create_superuser("root")
    for model_admin in _model_admins():
        declared = _actions(model_admin)
        for name, action in model_admin.get_actions(_request(everybody)).items():
            if name == "delete_selected":
                assert model_admin.opts.model_name in DJANGO_DELETES
                continue
            operation = declared[name]
            assert operation is not None, f"{model_admin}: {name}"
            assert OPERATIONS[operation.key] is operation
            title = action[2] if isinstance(action, tuple) else action.description
            assert str(title) == f"{operation.title}…"


def test_an_admin_action_needs_exactly_the_permission_of_its_operation() -> None:
    names = {one.permission for one in OPERATIONS.values() if one.permission}
    for permission in sorted(names):
        user = User.objects.create_user(permission, is_staff=True)
        given = Permission.objects.filter(_named(permission))
        views = Permission.objects.filter(codename__startswith="view_")
        user.user_permissions.set([*given, *views])
        for model_admin in _model_admins():
            operations = [one for one in _actions(model_admin).values() if one is not None]
            permitted = {one.name for one in operations if one.permission == permission}
            shown = set(model_admin.get_actions(_request(user))) - {"delete_selected"}
            assert shown == permitted


@pytest.mark.parametrize("subcommand", CHANGING, ids=lambda one: one.name)
def test_a_changing_subcommand_has_the_titles_and_the_confirmation_of_its_operations(
    subcommand: Subcommand,
) -> None:
    parser = parsers()[subcommand.name]
    options = {option for action in parser._actions for option in action.option_strings}
    assert {"--by", "--reason"} <= options
    assert ("--yes" in options) == any(one.confirm for one in subcommand.operations)
    text = " ".join(str(parser.description).split())
    for operation in subcommand.operations:
        assert OPERATIONS[operation.key] is operation
        assert f"{operation.title}: {operation.help}" in text


@pytest.mark.parametrize("subcommand", READING, ids=lambda one: one.name)
def test_a_subcommand_without_operations_writes_nothing(subcommand: Subcommand) -> None:
    a_task()
    a_schedule("nightly-report")
    options = {
        option for action in parsers()[subcommand.name]._actions for option in action.option_strings
    }
    assert not options & {"--by", "--reason", "--yes"}
    with CaptureQueriesContext(connection) as captured:
        for example in subcommand.examples:
            durable(*shlex.split(example))
    written = [
        query["sql"]
        for query in captured
        if query["sql"].lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE", "REPLACE"))
    ]
    assert not written
