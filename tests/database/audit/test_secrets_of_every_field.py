"""A secret in any text or JSON column of any model is shown by no list, page, history, export,
answer of the API, table or JSON of the command line, audit entry or metric.

The columns, pages, endpoints and subcommands are those that exist: a new one is checked too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db.models import Field, JSONField, Model
from django.urls import reverse

from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.management.commands.durable import SUBCOMMANDS
from django_durable_tasks.models.fields import EncryptedJSONField, is_free_text
from tests.database.admin.full_tenant import MODEL_ADMINS, shared_rows
from tests.database.admin.full_tenant import MODELS as PAGES
from tests.database.admin.site import staff
from tests.database.api.client import SETTINGS, a_client, a_tenant
from tests.database.api.endpoints import SHARED, filled, methods, patterns, rows_of
from tests.database.commands.durable_command import durable

pytestmark = pytest.mark.django_db
SECRET = "hunter2hunter2"
BY_THE_PACKAGE = {"Node", "WorkflowRun.callbacks"}
"""Models and columns whose JSON has names and values that this package writes."""
MODELS = [
    model
    for model in apps.get_models()
    if model._meta.app_config.name.startswith("django_durable_tasks")
]


def _free_texts(model: type[Model]) -> Iterator[Field[Any, Any]]:
    """Yield the columns that hold what people, programs or exceptions say, and JSON."""
    for field in model._meta.concrete_fields:
        names = {model.__name__, f"{model.__name__}.{field.name}"}
        is_json = isinstance(field, JSONField) and not names & BY_THE_PACKAGE
        if is_json or is_free_text(field):
            yield field


def _with_secret(field: Field[Any, Any], value: Any) -> Any:
    if not isinstance(field, JSONField):
        return f"token={SECRET}"
    if isinstance(value, list):  # those that are not encrypted contain names and ids
        return [*value, {"password": SECRET}] if isinstance(field, EncryptedJSONField) else value
    return {**(value or {}), "password": SECRET}


def _write_secrets() -> set[str]:
    """Write a secret into each of these columns of each row; return the columns written."""
    written = set()
    for model in MODELS:
        for row in model._base_manager.all():
            for field in _free_texts(model):
                value = _with_secret(field, getattr(row, field.attname))
                model._base_manager.filter(pk=row.pk).update(**{field.attname: value})
                written.add(f"{model.__name__}.{field.name}")
    return written


def _shown(text: str) -> str:
    """Return the text around a secret that is shown."""
    place = text.find(SECRET)
    return "" if place < 0 else text[max(0, place - 200) : place + 40]


@pytest.fixture
def ids(settings: Any) -> dict[str, Any]:
    settings.DURABLE_TASKS = dict(SETTINGS)
    client = a_client(a_tenant("acme"), *(scope for scope in ApiScope if scope != ApiScope.SECRETS))
    rows = {**rows_of(client), "client": client}
    shared_rows()
    assert len(_write_secrets()) > 30
    return rows


def test_no_page_of_the_admin_shows_a_secret(ids: dict[str, Any]) -> None:
    # Not to change them: the field of a form contains the text that it changes.
    viewer = staff(*(f"view_{name}" for name in PAGES))
    for model_admin in MODEL_ADMINS:
        label = f"{model_admin.opts.app_label}_{model_admin.opts.model_name}"
        addresses = [reverse(f"admin:{label}_changelist")]
        for row in model_admin.model._base_manager.all():
            addresses += [
                reverse(f"admin:{label}_{page}", args=[row.pk]) for page in ("change", "history")
            ]
        for address in addresses:
            assert not _shown(viewer.get(address).content.decode()), address


def test_no_answer_of_the_api_shows_a_secret(ids: dict[str, Any]) -> None:
    client = ids.pop("client")
    for address, pattern in patterns():
        if "GET" in methods(pattern) and not (address.startswith(SHARED) and "<" in address):
            answer = client.get(filled(address, ids))
            assert answer.status_code < 500, address
            assert not _shown(answer.content.decode()), address


def test_no_subcommand_shows_a_secret(ids: dict[str, Any]) -> None:
    kinds = ("tasks", "workflows", "recurring", "dead-letters", "queues", "nodes")
    shown = [ids[f"{kind}_id"] for kind in ("task", "recurring_task", "workflow")]
    calls: list[tuple[Any, ...]] = [("list", kind) for kind in kinds]
    calls += [("show", key) for key in shown]
    calls += [("audit",), ("status",), ("ledger", "nightly"), ("graph", ids["workflow_id"])]
    assert {words[0] for words in calls} <= set(SUBCOMMANDS)
    for words in calls:
        for form in ("table", "json"):
            answer = durable(*words, "--format", form)
            assert answer.out or words[0] == "graph", (words, answer)
            assert not _shown(answer.out + answer.err), (words, form)
