"""What the admin derives from models and from the options of schedules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import models
from django.test.utils import isolate_apps

from django_durable_tasks.admin import display
from django_durable_tasks.admin.recurring_tasks import RecurringForm
from django_durable_tasks.models import RecurringTask, Tenant
from django_durable_tasks.models.fields import EncryptedJSONField, ExactCharField, InstantField
from django_durable_tasks.schedules.options import COLUMNS, ScheduleOptions

pytestmark = pytest.mark.django_db


@isolate_apps("tests.project")
def test_a_new_column_is_shown_by_its_type_and_without_its_secrets() -> None:
    class Copied(models.Model):
        id = models.BigAutoField(primary_key=True)
        note = models.TextField("last note")
        reason = ExactCharField(max_length=99)
        detail = models.JSONField(null=True)
        secret = EncryptedJSONField(null=True)
        at = InstantField("noted at", null=True)
        color = models.CharField(max_length=5, choices=[("RED", "red")])

        class Meta:
            app_label = "project"

        def __str__(self) -> str:
            return self.color

    hidden = {"password": "hunter2"}
    row = Copied(
        note="token=hunter2\nmore",
        reason="password=hunter2",
        detail=hidden,
        secret=hidden,
        at=datetime(2026, 3, 2, 9, 30, 7, tzinfo=UTC),
    )
    columns = {
        field.name: display.column_of(field)
        for field in Copied._meta.concrete_fields
        if display.column_of(field) is not None
    }
    assert set(columns) == {"note", "reason", "detail", "secret", "at"}
    shown = {name: str(column(row)) for name, column in columns.items()}
    assert "hunter2" not in "".join(shown.values())
    assert "********" in shown["note"]
    assert "<pre" in shown["note"]
    assert shown["at"].endswith(":30:07")
    titles = [str(column.short_description) for column in columns.values()]
    assert titles[0] == "last note"
    # What the user may read is plain only in encrypted columns, which hold arguments and results.
    row.read_plain = True  # type: ignore[attr-defined]
    assert "hunter2" in columns["secret"](row)
    assert "hunter2" not in columns["detail"](row)
    assert {str(column(Copied())) for column in columns.values()} == {display.NOTHING}


def test_each_option_of_a_schedule_that_is_a_column_has_a_field_in_a_section() -> None:
    form = RecurringForm(tenants=Tenant.objects.all(), secrets=True)
    columns = {field.name for field in RecurringTask._meta.concrete_fields}
    stored = {
        option
        for option in ScheduleOptions.__annotations__
        if COLUMNS.get(option, option) in columns and option != "idempotency_key"
    }
    assert stored <= set(form.fields)
    shown = [field.name for _title, fields in form.fieldsets() for field in fields]
    assert len(shown) == len(set(shown))
    assert set(shown) == set(form.fields) - {"opened"}
