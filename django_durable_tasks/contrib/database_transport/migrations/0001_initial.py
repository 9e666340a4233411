"""The tables of the broker, and their storage on PostgreSQL."""

from typing import Any

from django.db import migrations, models

from django_durable_tasks.models.fields import ExactCharField, InstantField, PartialIndex

# PostgreSQL. Free space on each page lets a claim be a HOT update. Every message leaves two dead
# rows, so a share of the table as the threshold would let a short queue grow before it is vacuumed.
STORAGE = {
    "durable_tasks_transport_message": "fillfactor=70, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_insert_scale_factor=0.2, autovacuum_vacuum_cost_delay=0",
    "durable_tasks_transport_consumer": "fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200",
    "durable_tasks_transport_queue": "fillfactor=70, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200",
}


def set_storage(apps: Any, schema_editor: Any) -> None:
    """Set fill factors and autovacuum thresholds on PostgreSQL."""
    if schema_editor.connection.vendor == "postgresql":
        for table, options in STORAGE.items():
            schema_editor.execute(f"ALTER TABLE {schema_editor.quote_name(table)} SET ({options})")


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Consumer",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                (
                    "expires_at",
                    InstantField(verbose_name="expires at"),
                ),
                (
                    "hostname",
                    ExactCharField(max_length=255, verbose_name="host"),
                ),
                ("process_id", models.BigIntegerField(verbose_name="process")),
                (
                    "node",
                    models.UUIDField(
                        help_text="Its death ends the lease. Empty outside of workers.",
                        null=True,
                        verbose_name="node",
                    ),
                ),
            ],
            options={
                "verbose_name": "consumer of the broker",
                "verbose_name_plural": "consumers of the broker",
                "db_table": "durable_tasks_transport_consumer",
            },
        ),
        migrations.CreateModel(
            name="Exchange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    ExactCharField(max_length=255, unique=True, verbose_name="name"),
                ),
                (
                    "type",
                    ExactCharField(max_length=20, verbose_name="type"),
                ),
            ],
            options={
                "verbose_name": "exchange of the broker",
                "verbose_name_plural": "exchanges of the broker",
                "db_table": "durable_tasks_transport_exchange",
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    ExactCharField(max_length=255, unique=True, verbose_name="name"),
                ),
                (
                    "auto_delete",
                    models.BooleanField(
                        default=False,
                        help_text="Deleted when its consumer has gone.",
                        verbose_name="auto delete",
                    ),
                ),
                (
                    "message_ttl",
                    models.BigIntegerField(
                        help_text="Milliseconds.",
                        null=True,
                        verbose_name="time to live of messages",
                    ),
                ),
                (
                    "expires",
                    models.BigIntegerField(
                        help_text="Milliseconds without use after which it is deleted.",
                        null=True,
                        verbose_name="expires",
                    ),
                ),
                (
                    "consumer",
                    models.BigIntegerField(
                        help_text="The last consumer of a queue that can expire.",
                        null=True,
                        verbose_name="consumer",
                    ),
                ),
                (
                    "unused_until",
                    InstantField(
                        help_text="When it is deleted if it has no consumer.",
                        null=True,
                        verbose_name="unused until",
                    ),
                ),
            ],
            options={
                "verbose_name": "queue of the broker",
                "verbose_name_plural": "queues of the broker",
                "db_table": "durable_tasks_transport_queue",
            },
        ),
        migrations.CreateModel(
            name="Binding",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("exchange", models.BigIntegerField(verbose_name="exchange")),
                ("queue", models.BigIntegerField(verbose_name="queue")),
                (
                    "routing_key",
                    ExactCharField(blank=True, max_length=255, verbose_name="routing key"),
                ),
                ("arguments", models.JSONField(default=dict, verbose_name="arguments")),
                (
                    "digest",
                    ExactCharField(max_length=64, unique=True, verbose_name="digest"),
                ),
            ],
            options={
                "verbose_name": "binding of the broker",
                "verbose_name_plural": "bindings of the broker",
                "db_table": "durable_tasks_transport_binding",
                "indexes": [
                    models.Index(
                        fields=["exchange", "routing_key"], name="durable_transport_route"
                    ),
                    models.Index(fields=["queue"], name="durable_transport_bound"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("queue", models.BigIntegerField(verbose_name="queue")),
                (
                    "rank",
                    models.SmallIntegerField(
                        help_text="9 - priority: lower is first.", verbose_name="rank"
                    ),
                ),
                (
                    "consumer",
                    models.BigIntegerField(
                        help_text="Who holds it. 0: it cannot be read.",
                        null=True,
                        verbose_name="consumer",
                    ),
                ),
                ("deliveries", models.IntegerField(default=0, verbose_name="deliveries")),
                (
                    "expires_at",
                    InstantField(null=True, verbose_name="expires at"),
                ),
                ("body", models.TextField(verbose_name="message")),
            ],
            options={
                "verbose_name": "message of the broker",
                "verbose_name_plural": "messages of the broker",
                "db_table": "durable_tasks_transport_message",
                "indexes": [
                    models.Index(fields=["queue", "rank", "id"], name="durable_transport_ready"),
                    PartialIndex(
                        elsewhere=("expires_at",),
                        fields=["expires_at"],
                        name="durable_transport_expired",
                        where=models.Q(("expires_at__isnull", False)),
                    ),
                ],
            },
        ),
        migrations.RunPython(set_storage, migrations.RunPython.noop),
    ]
