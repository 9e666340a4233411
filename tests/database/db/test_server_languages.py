"""Errors are recognized by their codes, in every language of the messages of a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from django_durable_tasks.models import OccurrenceRecord, Task, Tenant
from django_durable_tasks.schedules import trigger
from django_durable_tasks.store.errors import is_unique_violation, is_unmigrated
from tests.database.recurring.schedules import START, a_schedule, at, fire
from tests.factories import a_task
from tests.project import tasks

pytestmark = pytest.mark.django_db
LANGUAGES = {
    "mariadb": ["en_US", "de_DE", "fr_FR", "ja_JP"],
    "postgresql": ["C", "de_DE.utf8"],
    "sqlite": ["English"],
}


@pytest.fixture(params=LANGUAGES[os.environ["TEST_DATABASE"]])
def language(request: pytest.FixtureRequest, db: None, vendor: str) -> Iterator[str]:
    """The language of the server's messages to this connection.

    MariaDB has each of them. PostgreSQL has those whose locale is installed on its machine.
    """
    language: str = request.param
    with connection.cursor() as cursor:
        if vendor == "mariadb":
            cursor.execute("SET SESSION lc_messages = %s", [language])
        elif vendor == "postgresql":
            try:
                with transaction.atomic():
                    cursor.execute("SET lc_messages = %s", [language])
            except DatabaseError:
                pytest.skip(
                    f"the locale {language} is missing: run `localedef --no-archive -i de_DE -f"
                    f" UTF-8 /usr/lib/locale/{language}` on the machine of the server"
                )
        yield language
        if vendor == "mariadb":
            cursor.execute("SET SESSION lc_messages = DEFAULT")


def _refused(*rows: Any) -> IntegrityError:
    *before, last = rows
    with transaction.atomic():
        for row in before:
            row.save(force_insert=True)
        with pytest.raises(IntegrityError) as raised, transaction.atomic():
            last.save(force_insert=True)
        transaction.set_rollback(True)
    return raised.value


def test_a_taken_key_is_told_from_other_violations(language: str) -> None:
    taken = [
        _refused(Tenant(slug="one"), Tenant(slug="one")),
        _refused(Tenant(id=7, slug="seven"), Tenant(id=7, slug="eight")),
    ]
    with pytest.raises(IntegrityError) as missing, transaction.atomic():
        Tenant.objects.filter(pk=Tenant.objects.create(slug="nine").pk).update(slug=None)
    assert [is_unique_violation(error) for error in [*taken, missing.value]] == [True, True, False]


def test_the_same_call_returns_the_same_task(language: str) -> None:
    for options in ({"idempotency_key": "a"}, {"key": "b"}, {}):
        keyed = tasks.unique.using(**cast("dict[str, Any]", options))
        called = [keyed.using(run_at=at(60)).schedule("a") for _ in range(2)]
        assert called[0].pk == called[1].pk
        Task.objects.all().cancel()


def test_a_taken_key_of_a_fire_time_is_recorded_in_the_ledger(language: str) -> None:
    row, good = a_schedule("taken"), a_schedule("good")
    a_task(idempotency_key=trigger.idempotency_key(row.pk, START))
    assert fire(START) == 1
    outcomes = dict(OccurrenceRecord.objects.values_list("recurring_task", "outcome"))
    assert outcomes == {row.pk: "FAILED_TO_CREATE", good.pk: "DISPATCHED"}


def test_a_missing_table_is_recognized(language: str) -> None:
    with (
        pytest.raises(DatabaseError) as raised,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT 1 FROM durable_tasks_absent")
    assert is_unmigrated(raised.value)
