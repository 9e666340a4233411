"""Every column of a short text compares exactly, in the models and in the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import CheckMessage
from django.db import connection, models
from django.db.models import Case, F, Value, When
from django.db.models.functions import Cast, Coalesce, Concat

from django_durable_tasks.checks import check_database
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import ExactCharField
from tests.architecture.sources import PACKAGE
from tests.factories import a_task

pytestmark = pytest.mark.django_db
TABLE = Task._meta.db_table


def _text_fields() -> Iterator[Any]:
    """Return the fields of all models of this package that are a varchar in the database."""
    for model in apps.get_models():
        if model.__module__.startswith(PACKAGE) and model._meta.managed:
            for field in model._meta.local_fields:
                if isinstance(field, models.CharField):
                    yield field


def test_every_text_field_compares_exactly() -> None:
    fields = list(_text_fields())
    assert len(fields) > 100
    assert [str(field) for field in fields if type(field) is not ExactCharField] == []


def test_the_fields_combine_with_other_texts() -> None:
    a_task(name="one", key="Two")
    either = Case(When(key=None, then=Value("none")), default=F("name"))
    joined = Concat(Value("<"), F("key"), Cast(F("priority"), models.CharField()))
    found = Task.objects.annotate(either=either, joined=joined, other=Coalesce("step", "queue"))
    assert found.values_list("either", "joined").get() == ("one", "<Two0")
    assert found.filter(joined="<Two0", name__icontains="ON", key__contains="Tw").exists()
    assert found.filter(key__icontains="tw", queue__in=["x", F("other")]).exists()
    assert not found.filter(key="two").exists()


def _findings() -> list[CheckMessage]:
    return [
        message
        for message in check_database(databases=["default"])
        if message.id == "durable_tasks.E022"
    ]


@pytest.mark.mariadb
def test_every_text_column_of_the_database_has_the_exact_collation() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name, collation_name FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND data_type = 'varchar'"
            " AND table_name LIKE 'durable%%'",
            [],
        )
        rows = cursor.fetchall()
    assert [row for row in rows if row[2] != "utf8mb4_nopad_bin"] == []
    assert {(field.model._meta.db_table, field.column) for field in _text_fields()} == {
        (table, column) for table, column, _ in rows
    }


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "collation", ["utf8mb4_general_ci", "utf8mb4_bin", "utf8mb4_unicode_ci", "utf8mb3_bin"]
)
def test_a_converted_table_is_reported_with_statements_that_repair_it(collation: str) -> None:
    charset = collation.partition("_")[0]
    with connection.cursor() as cursor:
        cursor.execute(
            f"ALTER TABLE {TABLE} CONVERT TO CHARACTER SET {charset} COLLATE {collation}"
        )
        try:
            [message] = _findings()
        finally:
            remedy = (
                f"ALTER TABLE {TABLE} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;"
            )
            cursor.execute(remedy)
    assert f"{TABLE}.name ({collation})" in message.msg
    assert remedy in message.msg
    assert _findings() == []
    test_every_text_column_of_the_database_has_the_exact_collation()


@pytest.mark.postgresql
def test_a_nondeterministic_collation_is_reported() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE COLLATION ignores_case"
            " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
        cursor.execute(f'ALTER TABLE {TABLE} ALTER step TYPE varchar(200) COLLATE "ignores_case"')
    [message] = _findings()
    assert f"{TABLE}.step (ignores_case)" in message.msg
