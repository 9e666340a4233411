"""A column that a model gets is shown by the admin, the API, the command line and the audit entry
without a line of code for it, with the secrets of its texts masked.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import models
from django.test.utils import isolate_apps
from rest_framework import serializers

from django_durable_tasks.admin import display
from django_durable_tasks.audit import recorded
from django_durable_tasks.command.subcommand import columns_of, details, facts_of
from django_durable_tasks.contrib.api.serializers import Answer, Options
from django_durable_tasks.models import AuditEntry
from django_durable_tasks.models.fields import EncryptedJSONField, ExactCharField, InstantField

pytestmark = pytest.mark.django_db
SECRET = "hunter2hunter2"


@pytest.fixture
def row() -> Any:
    """Return a row of a model with one column of each type."""
    with isolate_apps("tests.project"):

        class Copied(models.Model):
            id = models.BigAutoField(primary_key=True)
            note = models.TextField("last note", help_text="What was noted.")
            comment = ExactCharField(max_length=500)
            number = models.IntegerField(default=7)
            details = models.JSONField(null=True)
            arguments = EncryptedJSONField(null=True)
            noted_at = InstantField(null=True)
            color = models.CharField(max_length=5, choices=[("RED", "red")])

            class Meta:
                app_label = "project"

            def __str__(self) -> str:
                return self.color

        hidden = {"password": SECRET}
        yield Copied(
            id=1,
            note=f"token={SECRET}",
            comment=f"password={SECRET}",
            details=hidden,
            arguments=hidden,
            noted_at=datetime(2026, 3, 2, 9, 30, 7, tzinfo=UTC),
            color="RED",
        )


COLUMNS = {"note", "comment", "number", "details", "arguments", "noted_at", "color"}


def test_a_new_column_is_shown_by_the_api(row: Any) -> None:
    class CopiedAnswer(Answer):
        class Meta:
            model = type(row)
            hidden = ()

    class CopiedOptions(Options):
        class Meta(Options.Meta):
            model = type(row)
            options = tuple(COLUMNS - {"arguments", "details"})

    shown = CopiedAnswer.shown(row)
    assert set(shown) == COLUMNS
    assert SECRET not in str(shown)
    assert shown["number"] == 7
    assert SECRET in str(CopiedAnswer.shown(row, plain=True))
    assert CopiedOptions.valid({"note": "new", "number": 3}) == {"note": "new", "number": 3}
    with pytest.raises(serializers.ValidationError, match="choice"):
        CopiedOptions.valid({"color": "BLUE"})
    assert CopiedOptions().fields["note"].help_text == "What was noted."


def test_a_new_column_is_shown_by_the_command_line(row: Any) -> None:
    assert {*columns_of(type(row))} == {"id", *COLUMNS}
    text = "\n".join(details(facts_of(row)))
    assert all(name.replace("_", " ") in text for name in COLUMNS)
    assert SECRET not in text


def test_a_new_column_is_shown_by_the_admin(row: Any) -> None:
    fields = {field.name: field for field in row._meta.concrete_fields}
    masked = {name for name in COLUMNS if display.column_of(fields[name])}
    assert masked == COLUMNS - {"number", "color"}
    assert SECRET not in "".join(str(display.column_of(fields[name])(row)) for name in masked)
    assert display.column_of(fields["note"]).short_description == "last note"


def test_a_change_of_a_new_column_is_in_the_audit_entry(row: Any) -> None:
    facts = facts_of(row)
    with recorded("task.edit") as entry:
        entry.changed("task", 1, {"note": ""}, {name: facts[name] for name in ("note", "details")})
    audited = AuditEntry.objects.get()
    assert set(audited.after) == {"note", "details"}
    assert SECRET not in str(audited.after)
