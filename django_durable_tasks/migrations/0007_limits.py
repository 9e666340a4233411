"""Limits: operators' rows, token buckets, and what of a task a limit looks at."""

from typing import Any

from django.db import migrations, models

import django_durable_tasks.models.clock
import django_durable_tasks.models.indexes

SCOPES = {
    "durable_tasks_limit": "scope varchar(240) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
    "durable_tasks_limit_bucket": "scope varchar(240) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
}
TASK = "{} varchar({}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL"


def compare_exactly(apps: Any, schema_editor: Any) -> None:
    """Let MySQL and MariaDB tell scopes apart that differ in case only, as the other databases do."""
    if schema_editor.connection.vendor != "mysql":
        return
    for table, column in SCOPES.items():
        schema_editor.execute(f"ALTER TABLE {schema_editor.quote_name(table)} MODIFY {column}")
    task = schema_editor.quote_name("durable_tasks_task")
    columns = ", MODIFY ".join((TASK.format("held_for", 240), TASK.format("limit_key", 200)))
    schema_editor.execute(f"ALTER TABLE {task} MODIFY {columns}")


class Migration(migrations.Migration):
    dependencies = [
        ("django_durable_tasks", "0006_nodes"),
    ]

    operations = [
        migrations.CreateModel(
            name="Limit",
            fields=[
                (
                    "scope",
                    models.CharField(
                        help_text="global, queue:<name>, task:<name>, tenant:<id> or key:<text>.",
                        max_length=240,
                        primary_key=True,
                        serialize=False,
                        verbose_name="scope",
                    ),
                ),
                (
                    "max_concurrency",
                    models.IntegerField(
                        blank=True,
                        help_text="How many may be published or run at once.",
                        null=True,
                        verbose_name="max concurrency",
                    ),
                ),
                (
                    "rate",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Starts in a time: 10/m, 5/s, 100/h, 1000/d.",
                        max_length=20,
                        verbose_name="rate",
                    ),
                ),
                (
                    "burst",
                    models.FloatField(
                        blank=True,
                        help_text="How many may start at once after a pause; else one second's.",
                        null=True,
                        verbose_name="burst",
                    ),
                ),
                ("note", models.CharField(blank=True, default="", max_length=500, verbose_name="note")),
                ("set_by", models.CharField(blank=True, default="", max_length=200, verbose_name="set by")),
                (
                    "set_at",
                    models.DateTimeField(
                        db_default=django_durable_tasks.models.clock.DatabaseNow(),
                        editable=False,
                        verbose_name="set at",
                    ),
                ),
            ],
            options={
                "verbose_name": "limit",
                "verbose_name_plural": "limits",
                "db_table": "durable_tasks_limit",
                "ordering": ["scope"],
            },
        ),
        migrations.CreateModel(
            name="LimitBucket",
            fields=[
                ("scope", models.CharField(max_length=240, primary_key=True, serialize=False, verbose_name="scope")),
                ("tokens", models.FloatField(default=0.0, verbose_name="tokens")),
                ("refilled_at", models.DateTimeField(null=True, verbose_name="refilled at")),
            ],
            options={
                "verbose_name": "token bucket",
                "verbose_name_plural": "token buckets",
                "db_table": "durable_tasks_limit_bucket",
                "ordering": ["scope"],
            },
        ),
        migrations.AddField(
            model_name="task",
            name="held_for",
            field=models.CharField(editable=False, max_length=240, null=True, verbose_name="held for"),
        ),
        migrations.AddField(
            model_name="task",
            name="limit_key",
            field=models.CharField(blank=True, max_length=200, null=True, verbose_name="limit key"),
        ),
        migrations.AddField(
            model_name="task",
            name="raised",
            field=models.SmallIntegerField(db_default=0, editable=False, verbose_name="raised"),
        ),
        migrations.RunPython(compare_exactly, migrations.RunPython.noop, atomic=False),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.indexes.PartialIndex(
                elsewhere=("held_for", "-priority", "id"),
                fields=["held_for", "-priority", "id"],
                name="durable_task_parked",
                where=models.Q(("held_for__isnull", False)),
            ),
        ),
    ]
