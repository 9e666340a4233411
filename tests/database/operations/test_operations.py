"""Every operation of the registry is offered in the admin and on the command line, with the same
title, permission and confirmation, and nothing else changes anything there.
"""

from __future__ import annotations

import argparse
import inspect
import shlex
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import QuerySet
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.admin.readonly import ScreenAdmin
from django_durable_tasks.command.subcommand import Subcommand
from django_durable_tasks.contrib.api import urls as api_urls
from django_durable_tasks.management.commands.durable import SUBCOMMANDS, Command
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.operations.registry import OPERATIONS
from tests.database.commands.durable_command import durable
from tests.database.recurring.schedules import a_schedule
from tests.factories import a_task

pytestmark = pytest.mark.django_db
CHANGING = [one for one in SUBCOMMANDS.values() if one.operations]
READING = [one for one in SUBCOMMANDS.values() if not one.operations and one.name != "shadow"]
"""``shadow`` waits for the fires of django-celery-beat. Its own tests run it."""
DJANGO_DELETES = {"limit", "tenant"}
"""Models with Django's own delete action. That of limits performs ``limit.remove``."""


def _screens() -> list[ScreenAdmin]:
    return [one for one in admin.site._registry.values() if isinstance(one, ScreenAdmin)]


def _actions(screen: ScreenAdmin) -> dict[str, Operation | None]:
    return {
        one if isinstance(one, str) else one.__name__: getattr(one, "operation", None)
        for one in screen.actions or ()
    }


def _offered(screen: ScreenAdmin) -> set[Operation]:
    return {*screen.operations, *(one for one in _actions(screen).values() if one is not None)}


def _request(user: User) -> Any:
    request = RequestFactory().get("/")
    request.user = user
    return request


def _parsers() -> dict[str, argparse.ArgumentParser]:
    whole = Command().create_parser("manage.py", "durable")
    (found,) = (one for one in whole._actions if isinstance(one, argparse._SubParsersAction))
    return found.choices


@pytest.mark.parametrize("key", OPERATIONS)
def test_an_operation_is_offered_in_the_admin_or_gives_a_reason(key: str) -> None:
    offered = any(OPERATIONS[key] in _offered(screen) for screen in _screens())
    assert offered != bool(OPERATIONS[key].not_in_admin)


@pytest.mark.parametrize("key", OPERATIONS)
def test_an_operation_is_offered_on_the_command_line_or_gives_a_reason(key: str) -> None:
    offered = any(OPERATIONS[key] in one.operations for one in CHANGING)
    assert offered != bool(OPERATIONS[key].not_in_command)


@pytest.mark.parametrize("key", OPERATIONS)
def test_an_operation_is_offered_in_the_api_or_gives_a_reason(key: str) -> None:
    actions = [
        getattr(pattern.callback.cls, action)
        for pattern in api_urls.urlpatterns
        for action in pattern.callback.actions.values()
        if hasattr(getattr(pattern.callback.cls, action), "endpoint")
    ]
    offered = any(OPERATIONS[key] in action.endpoint.operations for action in actions)
    assert offered != bool(OPERATIONS[key].not_in_api)


@pytest.mark.parametrize("key", OPERATIONS)
def test_an_operation_takes_user_and_reason(key: str) -> None:
    parameters = inspect.signature(OPERATIONS[key].perform).parameters
    for name in ("by", "reason"):
        assert parameters[name].kind == inspect.Parameter.KEYWORD_ONLY
    for field in OPERATIONS[key].fields:
        takes_any = any(one.kind == inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        assert takes_any or field.name in parameters


def _permissions(name: str) -> QuerySet[Permission]:
    label, _, codename = name.rpartition(".")
    return Permission.objects.filter(
        content_type__app_label=label or "django_durable_tasks", codename=codename
    )


@pytest.mark.parametrize("key", OPERATIONS)
def test_an_operation_has_a_django_permission_unless_it_needs_a_shell(key: str) -> None:
    operation = OPERATIONS[key]
    if operation.not_in_admin and operation.not_in_api:
        assert not operation.permission
    else:
        assert _permissions(operation.permission).exists()


def test_the_admin_has_no_other_actions_and_shows_the_titles_of_the_registry() -> None:
    everybody = User.objects.create_superuser("root")
    for screen in _screens():
        declared = _actions(screen)
        for name, action in screen.get_actions(_request(everybody)).items():
            if name == "delete_selected":
                assert screen.opts.model_name in DJANGO_DELETES
                continue
            operation = declared[name]
            assert operation is not None, f"{screen}: {name}"
            assert OPERATIONS[operation.key] is operation
            title = action[2] if isinstance(action, tuple) else action.description
            assert str(title) == f"{operation.title}…"


def test_an_admin_action_needs_exactly_the_permission_of_its_operation() -> None:
    names = {one.permission for one in OPERATIONS.values() if one.permission}
    for permission in sorted(names):
        user = User.objects.create_user(permission, is_staff=True)
        given = _permissions(permission)
        views = Permission.objects.filter(codename__startswith="view_")
        user.user_permissions.set([*given, *views])
        for screen in _screens():
            operations = [one for one in _actions(screen).values() if one is not None]
            permitted = {one.name for one in operations if one.permission == permission}
            shown = set(screen.get_actions(_request(user))) - {"delete_selected"}
            assert shown == permitted


@pytest.mark.parametrize("subcommand", CHANGING, ids=lambda one: one.name)
def test_a_changing_subcommand_has_the_titles_and_the_confirmation_of_its_operations(
    subcommand: Subcommand,
) -> None:
    parser = _parsers()[subcommand.name]
    options = {option for action in parser._actions for option in action.option_strings}
    assert {"--by", "--reason"} <= options
    assert ("--yes" in options) == any(one.confirm for one in subcommand.operations)
    text = " ".join(str(parser.description).split())
    for operation in subcommand.operations:
        assert OPERATIONS[operation.key] is operation
        assert f"{operation.title}: {operation.help}" in text


@pytest.mark.parametrize("subcommand", READING, ids=lambda one: one.name)
def test_a_subcommand_without_operations_writes_nothing(
    subcommand: Subcommand,
) -> None:
    a_task()
    a_schedule("nightly-report")
    options = {
        option
        for action in _parsers()[subcommand.name]._actions
        for option in action.option_strings
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
