"""The default tenant, the leader's lease, and room on each page for HOT updates (PostgreSQL)."""

from datetime import UTC, datetime
from typing import Any

from django.db import migrations

STORAGE = {
    # For heartbeats only: a change of status is no HOT update, because indexes name it in their conditions. Measured with
    # 9,000 tasks and three heartbeats each: 47 % of the heartbeats were HOT, 7 % with 100, and the table grew less.
    "durable_tasks_task": "fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_analyze_scale_factor=0.02",
    "durable_tasks_node": "fillfactor=50",
    "durable_tasks_scheduler_lease": "fillfactor=50",
}


def first_rows(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    apps.get_model("django_durable_tasks", "Tenant").objects.using(alias).get_or_create(
        id=1, defaults={"slug": "default", "name": "Default"}
    )
    apps.get_model("django_durable_tasks", "SchedulerLease").objects.using(alias).get_or_create(
        name="leader", defaults={"expires_at": datetime(2000, 1, 1, tzinfo=UTC)}
    )
    if schema_editor.connection.vendor == "postgresql":
        tenant = apps.get_model("django_durable_tasks", "Tenant")._meta.db_table
        schema_editor.execute(f"SELECT setval(pg_get_serial_sequence('{tenant}', 'id'), 1)")


def leave_room(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for table, options in STORAGE.items():
            schema_editor.execute(f"ALTER TABLE {schema_editor.quote_name(table)} SET ({options})")


class Migration(migrations.Migration):
    dependencies = [("django_durable_tasks", "0001_initial")]
    operations = [
        migrations.RunPython(first_rows, migrations.RunPython.noop),
        migrations.RunPython(leave_room, migrations.RunPython.noop),
    ]
