"""All tables, the rows that always exist, and what Django's fields cannot say of PostgreSQL and
MySQL.
"""

import uuid
from datetime import UTC, datetime
from typing import Any

import django.db.models.deletion
from django.core.validators import validate_slug
from django.db import migrations, models

import django_durable_tasks.models.fields
import django_durable_tasks.models.schedules
import django_durable_tasks.models.tasks
from django_durable_tasks.models.fields import ExactCharField, InstantField

# PostgreSQL: free space on each page for HOT updates by heartbeats. A change of status is none, because
# indexes name it in
# their conditions. Measured with 9,000 tasks and three heartbeats each: 47 % of the heartbeats were
# HOT, 7 % with
# fillfactor 100, and the table grew less.
STORAGE = {
    "durable_tasks_task": "fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_analyze_scale_factor=0.02",
    "durable_tasks_node": "fillfactor=50",
    "durable_tasks_scheduler_lease": "fillfactor=50",
}


def first_rows(apps: Any, schema_editor: Any) -> None:
    """Write the default tenant and the free lease of the leader."""
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
            name="Limit",
            fields=[
                (
                    "scope",
                    ExactCharField(
                        help_text="global, queue:<name>, task:<name>, tenant:<id>, tenant:* or key:<text>.",
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
                    ExactCharField(
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
                (
                    "comment",
                    ExactCharField(blank=True, default="", max_length=500, verbose_name="comment"),
                ),
                (
                    "set_by",
                    ExactCharField(blank=True, default="", max_length=200, verbose_name="set by"),
                ),
                (
                    "set_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
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
            name="BatchMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", ExactCharField(max_length=200, verbose_name="queue")),
                ("name", ExactCharField(max_length=200, verbose_name="name")),
                ("due_at", InstantField(null=True, verbose_name="due at")),
                ("publish_count", models.IntegerField(default=0, verbose_name="publish count")),
                ("number", models.BigIntegerField(default=0, verbose_name="number")),
            ],
            options={
                "verbose_name": "batch message",
                "verbose_name_plural": "batch messages",
                "db_table": "durable_tasks_batch_message",
                "ordering": ["queue", "name"],
            },
        ),
        migrations.AddConstraint(
            model_name="batchmessage",
            constraint=models.UniqueConstraint(
                fields=("queue", "name"), name="durable_one_batch_message"
            ),
        ),
        migrations.CreateModel(
            name="LimitBucket",
            fields=[
                (
                    "scope",
                    ExactCharField(
                        max_length=240, primary_key=True, serialize=False, verbose_name="scope"
                    ),
                ),
                ("tokens", models.FloatField(default=0.0, verbose_name="tokens")),
                ("refilled_at", InstantField(null=True, verbose_name="refilled at")),
            ],
            options={
                "verbose_name": "token bucket",
                "verbose_name_plural": "token buckets",
                "db_table": "durable_tasks_limit_bucket",
                "ordering": ["scope"],
            },
        ),
        migrations.CreateModel(
            name="Node",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("name", ExactCharField(max_length=255, verbose_name="name")),
                (
                    "kind",
                    ExactCharField(
                        choices=[("SCHEDULER", "SCHEDULER"), ("WORKER", "WORKER")],
                        max_length=9,
                        verbose_name="kind",
                    ),
                ),
                ("host", ExactCharField(max_length=255, verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process id")),
                ("version", ExactCharField(max_length=50, verbose_name="version")),
                (
                    "pool",
                    ExactCharField(blank=True, default="", max_length=50, verbose_name="pool"),
                ),
                ("concurrency", models.IntegerField(default=0, verbose_name="concurrency")),
                ("queues", models.JSONField(default=list, verbose_name="queues")),
                ("beats", models.BigIntegerField(default=0, verbose_name="beats")),
                ("started_at", InstantField(verbose_name="started at")),
                ("last_seen_at", InstantField(verbose_name="last seen at")),
                (
                    "stopped_at",
                    InstantField(blank=True, null=True, verbose_name="stopped at"),
                ),
                ("declared_dead", models.BooleanField(default=False, verbose_name="declared dead")),
                (
                    "region",
                    ExactCharField(blank=True, db_default="", max_length=50, verbose_name="region"),
                ),
                (
                    "shards",
                    models.JSONField(
                        blank=True, help_text="Empty: all.", null=True, verbose_name="shards"
                    ),
                ),
                (
                    "keeps_to_shards",
                    models.BooleanField(db_default=False, verbose_name="keeps to its shards"),
                ),
                ("versions", models.JSONField(blank=True, null=True, verbose_name="versions")),
                (
                    "active",
                    models.JSONField(
                        blank=True,
                        help_text="Number, and up to 20 ids; messages that were received and not started, starts per second, and queues with messages that belong to no task.",
                        null=True,
                        verbose_name="running tasks",
                    ),
                ),
                (
                    "last_scan_at",
                    InstantField(blank=True, null=True, verbose_name="last scan at"),
                ),
                (
                    "last_start_at",
                    InstantField(blank=True, null=True, verbose_name="last start at"),
                ),
                (
                    "skew",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds by which the host's clock is ahead of the database's.",
                        null=True,
                        verbose_name="skew",
                    ),
                ),
                ("draining", models.BooleanField(db_default=False, verbose_name="draining")),
                (
                    "index_state",
                    ExactCharField(
                        blank=True,
                        db_default="",
                        help_text="Where a scheduler finds what is due next, or why and how often it polls for it.",
                        max_length=300,
                        verbose_name="due index",
                    ),
                ),
                (
                    "wakeups_state",
                    ExactCharField(
                        blank=True,
                        db_default="",
                        help_text="What wakes a scheduler when rows are due soon, or why nothing does.",
                        max_length=300,
                        verbose_name="wake-ups",
                    ),
                ),
                (
                    "failing",
                    models.JSONField(
                        blank=True,
                        help_text="Parts of a scheduler that fail: what, the error, how often in a row and for how many seconds.",
                        null=True,
                        verbose_name="failing",
                    ),
                ),
                (
                    "rejected_queues",
                    models.JSONField(
                        blank=True,
                        help_text="Queues whose messages the broker rejects, with its reason.",
                        null=True,
                        verbose_name="rejected queues",
                    ),
                ),
                (
                    "clock_step",
                    models.FloatField(
                        blank=True,
                        help_text="By how many seconds the database's clock was set when this leader noticed it last; negative: back.",
                        null=True,
                        verbose_name="clock step",
                    ),
                ),
                (
                    "clock_step_at",
                    InstantField(blank=True, null=True, verbose_name="clock step at"),
                ),
                (
                    "names",
                    models.JSONField(
                        blank=True,
                        help_text="Names of the durable tasks that a worker has registered. Empty: not reported.",
                        null=True,
                        verbose_name="registered tasks",
                    ),
                ),
                (
                    "names_digest",
                    ExactCharField(blank=True, db_default="", editable=False, max_length=32),
                ),
                (
                    "broker_outages",
                    models.IntegerField(
                        db_default=0,
                        help_text="How often the node lost the broker and could use it again.",
                        verbose_name="broker outages",
                    ),
                ),
            ],
            options={
                "verbose_name": "node",
                "verbose_name_plural": "nodes",
                "db_table": "durable_tasks_node",
                "ordering": ["-last_seen_at"],
            },
        ),
        migrations.CreateModel(
            name="QueueControl",
            fields=[
                (
                    "name",
                    ExactCharField(
                        max_length=200, primary_key=True, serialize=False, verbose_name="queue"
                    ),
                ),
                (
                    "paused_at",
                    InstantField(blank=True, null=True, verbose_name="paused at"),
                ),
                (
                    "paused_by",
                    ExactCharField(
                        blank=True, default="", max_length=200, verbose_name="paused by"
                    ),
                ),
                (
                    "reason",
                    ExactCharField(blank=True, default="", max_length=500, verbose_name="reason"),
                ),
                (
                    "misrouted",
                    models.BigIntegerField(
                        db_default=0,
                        help_text="Messages for tasks of this queue that were consumed from another queue, and started nothing.",
                        verbose_name="misrouted messages",
                    ),
                ),
                (
                    "misrouted_at",
                    InstantField(blank=True, null=True, verbose_name="last misrouted at"),
                ),
                (
                    "misrouted_from",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="consumed from"
                    ),
                ),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "durable_tasks_queue_control",
                "ordering": ["name"],
                "permissions": [("pause_queuecontrol", "Can pause and resume")],
            },
        ),
        migrations.CreateModel(
            name="RecurringTask",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=django_durable_tasks.models.schedules.new_recurring_task_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("name", ExactCharField(max_length=200, verbose_name="name")),
                (
                    "description",
                    ExactCharField(
                        blank=True, default="", max_length=500, verbose_name="description"
                    ),
                ),
                (
                    "status",
                    ExactCharField(
                        choices=[
                            ("ACTIVE", "ACTIVE"),
                            ("PAUSED", "PAUSED"),
                            ("CANCELLED", "CANCELLED"),
                        ],
                        default="ACTIVE",
                        max_length=9,
                        verbose_name="status",
                    ),
                ),
                (
                    "status_reason",
                    ExactCharField(
                        blank=True, default="", max_length=200, verbose_name="status reason"
                    ),
                ),
                (
                    "status_by",
                    ExactCharField(
                        blank=True, default="", max_length=200, verbose_name="status set by"
                    ),
                ),
                (
                    "paused_at",
                    InstantField(blank=True, null=True, verbose_name="paused at"),
                ),
                (
                    "paused_until",
                    InstantField(blank=True, null=True, verbose_name="paused until"),
                ),
                ("error", models.TextField(blank=True, default="", verbose_name="error")),
                (
                    "task",
                    ExactCharField(
                        help_text="The registered name of a durable task.",
                        max_length=200,
                        verbose_name="task",
                    ),
                ),
                (
                    "args",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        blank=True, default=list, verbose_name="arguments"
                    ),
                ),
                (
                    "kwargs",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        blank=True, default=dict, verbose_name="keyword arguments"
                    ),
                ),
                (
                    "queue",
                    ExactCharField(
                        blank=True,
                        default="",
                        help_text="Empty: the task's own.",
                        max_length=200,
                        verbose_name="queue",
                    ),
                ),
                (
                    "priority",
                    models.SmallIntegerField(
                        blank=True,
                        help_text="0 to 9; empty: the task's.",
                        null=True,
                        verbose_name="priority",
                    ),
                ),
                (
                    "options",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="As for .using() of the task.",
                        verbose_name="options",
                    ),
                ),
                (
                    "target_type",
                    ExactCharField(
                        choices=[
                            ("CELERY_TASK", "CELERY_TASK"),
                            ("HTTP_CALLBACK", "HTTP_CALLBACK"),
                            ("QUEUE_MESSAGE", "QUEUE_MESSAGE"),
                        ],
                        default="CELERY_TASK",
                        max_length=13,
                        verbose_name="target type",
                    ),
                ),
                (
                    "timetable",
                    models.JSONField(
                        help_text="One or more parts, combined by OR.", verbose_name="timetable"
                    ),
                ),
                (
                    "interval_seconds",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds, of a plain one.",
                        null=True,
                        verbose_name="interval",
                    ),
                ),
                (
                    "time_zone",
                    ExactCharField(default="UTC", max_length=64, verbose_name="time zone"),
                ),
                (
                    "dst_gap",
                    ExactCharField(default="RUN_AFTER", max_length=9, verbose_name="DST gap"),
                ),
                (
                    "dst_overlap",
                    ExactCharField(default="FIRST", max_length=5, verbose_name="DST overlap"),
                ),
                (
                    "calendars",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="Names; closed where any is.",
                        verbose_name="calendars",
                    ),
                ),
                ("roll", ExactCharField(default="SKIP", max_length=18, verbose_name="roll")),
                (
                    "jitter",
                    models.FloatField(default=0.0, help_text="Seconds.", verbose_name="jitter"),
                ),
                (
                    "jitter_percent",
                    models.FloatField(
                        default=0.0,
                        help_text="Of the way to the next fire.",
                        verbose_name="jitter percent",
                    ),
                ),
                (
                    "overrides",
                    models.JSONField(default=list, editable=False, verbose_name="overrides"),
                ),
                ("start_time", InstantField(verbose_name="start time")),
                ("end_time", InstantField(blank=True, null=True, verbose_name="end time")),
                (
                    "max_runs",
                    models.BigIntegerField(blank=True, null=True, verbose_name="max runs"),
                ),
                ("runs_count", models.BigIntegerField(default=0, verbose_name="runs")),
                (
                    "expires_in",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds after its fire time at which a run is too late.",
                        null=True,
                        verbose_name="expires in",
                    ),
                ),
                (
                    "catch_up_mode",
                    ExactCharField(
                        choices=[
                            ("RUN_ALL_MISSED", "RUN_ALL_MISSED"),
                            ("RUN_ONE_NOW", "RUN_ONE_NOW"),
                            ("SKIP_MISSED", "SKIP_MISSED"),
                        ],
                        default="RUN_ONE_NOW",
                        max_length=14,
                        verbose_name="catch-up mode",
                    ),
                ),
                (
                    "misfire_grace",
                    models.FloatField(
                        default=60.0, help_text="Seconds.", verbose_name="misfire grace"
                    ),
                ),
                (
                    "catchup_window",
                    models.FloatField(
                        blank=True, help_text="Seconds.", null=True, verbose_name="catch-up window"
                    ),
                ),
                (
                    "max_catchup_runs",
                    models.IntegerField(default=100, verbose_name="most runs caught up"),
                ),
                (
                    "catchup_order",
                    ExactCharField(
                        choices=[("OLDEST", "OLDEST"), ("NEWEST", "NEWEST")],
                        default="OLDEST",
                        max_length=6,
                        verbose_name="catch-up order",
                    ),
                ),
                (
                    "catchup_pace",
                    models.FloatField(
                        default=0.0,
                        help_text="Seconds between two such runs.",
                        verbose_name="catch-up pace",
                    ),
                ),
                (
                    "overlap",
                    ExactCharField(
                        choices=[
                            ("ALLOW", "ALLOW"),
                            ("SKIP", "SKIP"),
                            ("QUEUE_ONE", "QUEUE_ONE"),
                            ("QUEUE_ALL", "QUEUE_ALL"),
                            ("CANCEL_RUNNING", "CANCEL_RUNNING"),
                            ("REPLACE_PENDING", "REPLACE_PENDING"),
                        ],
                        default="SKIP",
                        max_length=15,
                        verbose_name="overlap",
                    ),
                ),
                (
                    "overlap_key",
                    ExactCharField(
                        blank=True,
                        default="",
                        help_text="A template over the arguments; runs with the same key do not overlap.",
                        max_length=200,
                        verbose_name="overlap key",
                    ),
                ),
                (
                    "next_run_at",
                    InstantField(blank=True, null=True, verbose_name="next run at"),
                ),
                ("watermark_at", InstantField(verbose_name="watermark")),
                (
                    "last_run_at",
                    InstantField(blank=True, null=True, verbose_name="last run at"),
                ),
                (
                    "ledger_from",
                    InstantField(blank=True, null=True, verbose_name="ledger kept from"),
                ),
                (
                    "tzdata_version",
                    ExactCharField(
                        blank=True, default="", max_length=20, verbose_name="tzdata version"
                    ),
                ),
                ("revision", models.BigIntegerField(default=0, verbose_name="revision")),
                (
                    "idempotency_key",
                    ExactCharField(
                        blank=True, max_length=200, null=True, verbose_name="idempotency key"
                    ),
                ),
                (
                    "source",
                    ExactCharField(
                        blank=True,
                        default="",
                        help_text="Where it is declared: code, settings, beat, api, or empty for an operator.",
                        max_length=20,
                        verbose_name="source",
                    ),
                ),
                (
                    "declaration",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        blank=True,
                        help_text="The columns as code or settings last declared them.",
                        null=True,
                        verbose_name="declaration",
                    ),
                ),
                (
                    "undeclared_at",
                    InstantField(blank=True, null=True, verbose_name="no longer declared since"),
                ),
                (
                    "created_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="created at",
                    ),
                ),
                (
                    "updated_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="updated at",
                    ),
                ),
                (
                    "encryption_key",
                    ExactCharField(
                        blank=True,
                        editable=False,
                        max_length=40,
                        null=True,
                        verbose_name="encryption key",
                    ),
                ),
            ],
            options={
                "verbose_name": "recurring task",
                "verbose_name_plural": "recurring tasks",
                "db_table": "durable_tasks_recurring_task",
                "ordering": ["name"],
                "permissions": [
                    ("pause_recurringtask", "Can pause and resume recurring tasks"),
                    ("trigger_recurringtask", "Can trigger and backfill recurring tasks"),
                ],
            },
        ),
        migrations.CreateModel(
            name="SchedulerLease",
            fields=[
                (
                    "name",
                    ExactCharField(
                        max_length=100, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
                ("holder", models.UUIDField(null=True, verbose_name="holder")),
                ("term", models.BigIntegerField(default=0, verbose_name="term")),
                ("acquired_at", InstantField(null=True, verbose_name="acquired at")),
                ("expires_at", InstantField(verbose_name="expires at")),
            ],
            options={
                "verbose_name": "scheduler lease",
                "verbose_name_plural": "scheduler leases",
                "db_table": "durable_tasks_scheduler_lease",
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "slug",
                    ExactCharField(
                        max_length=100, unique=True, validators=[validate_slug], verbose_name="slug"
                    ),
                ),
                ("name", ExactCharField(blank=True, max_length=200, verbose_name="name")),
                ("created_at", InstantField(auto_now_add=True, verbose_name="created at")),
            ],
            options={
                "verbose_name": "tenant",
                "verbose_name_plural": "tenants",
                "db_table": "durable_tasks_tenant",
                "ordering": ["slug"],
            },
        ),
        migrations.CreateModel(
            name="EndingEvent",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("task_id", models.UUIDField()),
                ("epoch", models.BigIntegerField()),
                ("workflow_id", models.UUIDField(null=True)),
                ("status", ExactCharField(max_length=9)),
                ("delta", models.SmallIntegerField(db_default=1)),
                ("resolved", models.BooleanField(db_default=False)),
            ],
            options={
                "db_table": "durable_tasks_ending_event",
                "indexes": [
                    models.Index(fields=["task_id"], name="durable_ending_task"),
                    django_durable_tasks.models.fields.PartialIndex(
                        elsewhere=("resolved", "id"),
                        fields=["id"],
                        name="durable_ending_unresolved",
                        where=models.Q(("resolved", False)),
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=django_durable_tasks.models.tasks.new_task_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("name", ExactCharField(max_length=200, verbose_name="name")),
                ("queue", ExactCharField(max_length=200, verbose_name="queue")),
                (
                    "priority",
                    models.SmallIntegerField(
                        db_default=0, help_text="0 to 9, 9 first.", verbose_name="priority"
                    ),
                ),
                (
                    "args",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        default=list, verbose_name="arguments"
                    ),
                ),
                (
                    "kwargs",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        default=dict, verbose_name="keyword arguments"
                    ),
                ),
                (
                    "options",
                    models.JSONField(blank=True, null=True, verbose_name="overridden options"),
                ),
                (
                    "status",
                    ExactCharField(
                        choices=[
                            ("BLOCKED", "BLOCKED"),
                            ("PENDING", "PENDING"),
                            ("QUEUED", "QUEUED"),
                            ("RUNNING", "RUNNING"),
                            ("SUCCESS", "SUCCESS"),
                            ("FAILED", "FAILED"),
                            ("CANCELLED", "CANCELLED"),
                            ("SKIPPED", "SKIPPED"),
                            ("EXPIRED", "EXPIRED"),
                        ],
                        max_length=9,
                        verbose_name="status",
                    ),
                ),
                (
                    "run_at",
                    InstantField(
                        help_text="Earliest start, as it was asked for.", verbose_name="run at"
                    ),
                ),
                ("due_at", InstantField(blank=True, null=True, verbose_name="due at")),
                (
                    "ready_at",
                    InstantField(editable=False, null=True, verbose_name="ready at"),
                ),
                (
                    "queued_at",
                    InstantField(editable=False, null=True, verbose_name="queued at"),
                ),
                (
                    "lease_until",
                    InstantField(blank=True, null=True, verbose_name="lease until"),
                ),
                (
                    "expires_at",
                    InstantField(blank=True, null=True, verbose_name="expires at"),
                ),
                ("epoch", models.BigIntegerField(db_default=0, verbose_name="epoch")),
                ("run_id", models.UUIDField(blank=True, null=True, verbose_name="run id")),
                ("node", models.UUIDField(blank=True, null=True, verbose_name="node")),
                ("attempts", models.IntegerField(db_default=0, verbose_name="attempts")),
                ("failures", models.IntegerField(db_default=0, verbose_name="failures")),
                ("crashes", models.IntegerField(db_default=0, verbose_name="crashes")),
                ("publish_count", models.IntegerField(db_default=0, verbose_name="publish count")),
                ("max_attempts", models.IntegerField(db_default=5, verbose_name="max attempts")),
                ("max_crashes", models.IntegerField(db_default=3, verbose_name="max crashes")),
                (
                    "on_orphan",
                    ExactCharField(
                        choices=[("RETRY", "RETRY"), ("DEAD_LETTER", "DEAD_LETTER")],
                        db_default="RETRY",
                        max_length=11,
                        verbose_name="on orphan",
                    ),
                ),
                (
                    "expected_duration",
                    models.DurationField(blank=True, null=True, verbose_name="expected duration"),
                ),
                (
                    "idempotency_key",
                    ExactCharField(
                        blank=True, max_length=200, null=True, verbose_name="idempotency key"
                    ),
                ),
                (
                    "key",
                    ExactCharField(blank=True, max_length=200, null=True, verbose_name="key"),
                ),
                (
                    "unique_key",
                    ExactCharField(
                        blank=True, max_length=200, null=True, verbose_name="unique key"
                    ),
                ),
                ("open_key", ExactCharField(editable=False, max_length=200, null=True)),
                ("open_unique_key", ExactCharField(editable=False, max_length=200, null=True)),
                (
                    "result",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        blank=True, null=True, verbose_name="result"
                    ),
                ),
                ("progress", models.JSONField(blank=True, null=True, verbose_name="progress")),
                (
                    "last_error",
                    models.TextField(blank=True, db_default="", verbose_name="last error"),
                ),
                (
                    "reason",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="reason"
                    ),
                ),
                (
                    "cancel_requested_at",
                    InstantField(blank=True, null=True, verbose_name="cancel requested at"),
                ),
                (
                    "created_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="created at",
                    ),
                ),
                (
                    "updated_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="updated at",
                    ),
                ),
                (
                    "started_at",
                    InstantField(blank=True, null=True, verbose_name="started at"),
                ),
                (
                    "completed_at",
                    InstantField(blank=True, null=True, verbose_name="completed at"),
                ),
                (
                    "target_type",
                    ExactCharField(
                        choices=[
                            ("CELERY_TASK", "CELERY_TASK"),
                            ("HTTP_CALLBACK", "HTTP_CALLBACK"),
                            ("QUEUE_MESSAGE", "QUEUE_MESSAGE"),
                        ],
                        db_default="CELERY_TASK",
                        max_length=13,
                        verbose_name="target type",
                    ),
                ),
                (
                    "time_zone",
                    ExactCharField(
                        blank=True, db_default="", max_length=64, verbose_name="time zone"
                    ),
                ),
                (
                    "fire_time",
                    InstantField(blank=True, null=True, verbose_name="fire time"),
                ),
                (
                    "overlap_key",
                    ExactCharField(
                        blank=True, max_length=220, null=True, verbose_name="overlap key"
                    ),
                ),
                (
                    "step",
                    ExactCharField(blank=True, max_length=200, null=True, verbose_name="step"),
                ),
                (
                    "join_count",
                    models.IntegerField(
                        blank=True,
                        help_text="How many of its edges it needs; empty: all.",
                        null=True,
                        verbose_name="join",
                    ),
                ),
                (
                    "on_upstream_failure",
                    ExactCharField(
                        choices=[
                            ("SKIP", "SKIP"),
                            ("FAIL", "FAIL"),
                            ("WAIT", "WAIT"),
                            ("RUN", "RUN"),
                        ],
                        db_default="SKIP",
                        max_length=4,
                        verbose_name="on upstream failure",
                    ),
                ),
                (
                    "cause",
                    models.UUIDField(
                        blank=True,
                        help_text="The task because of which it ended.",
                        null=True,
                        verbose_name="cause",
                    ),
                ),
                (
                    "has_dependents",
                    models.BooleanField(db_default=False, verbose_name="has dependents"),
                ),
                (
                    "unresolved_dependencies_count",
                    models.IntegerField(db_default=0, verbose_name="unresolved dependencies"),
                ),
                ("shard_key", models.SmallIntegerField(db_default=0, verbose_name="shard")),
                (
                    "weight",
                    models.SmallIntegerField(
                        db_default=1,
                        help_text="How many places and tokens of each limit it takes.",
                        verbose_name="weight",
                    ),
                ),
                (
                    "limit_key",
                    ExactCharField(blank=True, max_length=200, null=True, verbose_name="limit key"),
                ),
                (
                    "waiting_for_limit",
                    ExactCharField(
                        editable=False, max_length=410, null=True, verbose_name="waiting for limit"
                    ),
                ),
                (
                    "priority_boost",
                    models.SmallIntegerField(
                        db_default=0, editable=False, verbose_name="priority boost"
                    ),
                ),
                (
                    "recurring_task",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="tasks",
                        to="django_durable_tasks.recurringtask",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_default=1,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
                (
                    "encryption_key",
                    ExactCharField(
                        blank=True,
                        editable=False,
                        max_length=40,
                        null=True,
                        verbose_name="encryption key",
                    ),
                ),
                (
                    "in_batch",
                    models.BooleanField(
                        db_default=False, editable=False, verbose_name="runs in batches"
                    ),
                ),
            ],
            options={
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
                "db_table": "durable_tasks_task",
                "ordering": ["-id"],
                "permissions": [
                    ("cancel_task", "Can cancel tasks"),
                    ("retry_task", "Can retry a waiting or finished task"),
                    ("force_complete_task", "Can call tasks done without running them"),
                    ("view_task_arguments", "Can read unmasked arguments and results"),
                ],
            },
        ),
        migrations.CreateModel(
            name="TaskRequest",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    ExactCharField(
                        choices=[
                            ("CANCEL", "CANCEL"),
                            ("DEPENDENTS", "DEPENDENTS"),
                            ("KEY", "KEY"),
                            ("UNIQUE_KEY", "UNIQUE_KEY"),
                        ],
                        max_length=10,
                    ),
                ),
                ("task_id", models.UUIDField(db_index=True)),
                ("tenant_id", models.BigIntegerField(null=True)),
                ("key", ExactCharField(max_length=200, null=True)),
                ("reason", ExactCharField(db_default="", max_length=200)),
                (
                    "created_at",
                    InstantField(db_default=django_durable_tasks.models.fields.StatementTime()),
                ),
            ],
            options={
                "db_table": "durable_tasks_request",
                "constraints": [
                    django_durable_tasks.models.fields.PresentUnique(
                        fields=("kind", "tenant_id", "key"), name="durable_request_one_key"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="TaskExecutionLog",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("attempt_number", models.IntegerField(verbose_name="attempt")),
                (
                    "status",
                    ExactCharField(
                        choices=[
                            ("SUCCESS", "SUCCESS"),
                            ("FAILED", "FAILED"),
                            ("RETRY", "RETRY"),
                            ("LOST", "LOST"),
                            ("CANCELLED", "CANCELLED"),
                            ("FENCED", "FENCED"),
                            ("DUPLICATE", "DUPLICATE"),
                        ],
                        max_length=9,
                        verbose_name="status",
                    ),
                ),
                ("ready_at", InstantField(null=True, verbose_name="ready at")),
                ("queued_at", InstantField(null=True, verbose_name="queued at")),
                ("started_at", InstantField(null=True, verbose_name="started at")),
                ("completed_at", InstantField(verbose_name="completed at")),
                (
                    "error_message",
                    models.TextField(blank=True, db_default="", verbose_name="error"),
                ),
                (
                    "traceback",
                    models.TextField(blank=True, db_default="", verbose_name="traceback"),
                ),
                ("exception", models.JSONField(null=True, verbose_name="exception")),
                (
                    "worker",
                    ExactCharField(
                        blank=True, db_default="", max_length=255, verbose_name="worker"
                    ),
                ),
                ("node", models.UUIDField(null=True, verbose_name="node")),
                ("run_id", models.UUIDField(null=True, verbose_name="run id")),
                (
                    "celery_id",
                    ExactCharField(
                        blank=True, db_default="", max_length=100, verbose_name="Celery id"
                    ),
                ),
                (
                    "task",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="executions",
                        to="django_durable_tasks.task",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_default=1,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "execution",
                "verbose_name_plural": "execution log",
                "db_table": "durable_tasks_execution_log",
                "ordering": ["-id"],
            },
        ),
        migrations.AddField(
            model_name="recurringtask",
            name="tenant",
            field=models.ForeignKey(
                db_constraint=False,
                db_default=1,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="django_durable_tasks.tenant",
            ),
        ),
        migrations.CreateModel(
            name="OccurrenceRecord",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("fire_time", InstantField(verbose_name="fire time")),
                (
                    "last_fire_time",
                    InstantField(blank=True, null=True, verbose_name="last fire time"),
                ),
                ("count", models.BigIntegerField(default=1, verbose_name="count")),
                (
                    "count_is_exact",
                    models.BooleanField(default=True, verbose_name="count is exact"),
                ),
                ("unique_fire_time", InstantField(editable=False, null=True)),
                (
                    "effective_at",
                    InstantField(blank=True, null=True, verbose_name="effective at"),
                ),
                (
                    "outcome",
                    ExactCharField(
                        choices=[
                            ("DISPATCHED", "DISPATCHED"),
                            ("ROLLED", "ROLLED"),
                            ("MANUAL", "MANUAL"),
                            ("SKIPPED_OVERLAP", "SKIPPED_OVERLAP"),
                            ("SKIPPED_CALENDAR", "SKIPPED_CALENDAR"),
                            ("SKIPPED_QUOTA", "SKIPPED_QUOTA"),
                            ("MISSED", "MISSED"),
                            ("EXPIRED", "EXPIRED"),
                            ("PAUSED", "PAUSED"),
                            ("OVERRIDDEN", "OVERRIDDEN"),
                            ("FAILED_TO_CREATE", "FAILED_TO_CREATE"),
                        ],
                        max_length=16,
                        verbose_name="outcome",
                    ),
                ),
                (
                    "reason",
                    ExactCharField(blank=True, default="", max_length=500, verbose_name="reason"),
                ),
                ("blocked_by", models.UUIDField(blank=True, null=True, verbose_name="blocked by")),
                (
                    "request_id",
                    ExactCharField(
                        blank=True, max_length=200, null=True, verbose_name="request id"
                    ),
                ),
                ("term", models.BigIntegerField(blank=True, null=True, verbose_name="term")),
                (
                    "created_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="created at",
                    ),
                ),
                (
                    "recurring_task",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="occurrences",
                        to="django_durable_tasks.recurringtask",
                    ),
                ),
                (
                    "task",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="django_durable_tasks.task",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_default=1,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "occurrence",
                "verbose_name_plural": "ledger of occurrences",
                "db_table": "durable_tasks_occurrence",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("open_task", models.UUIDField(editable=False, null=True)),
                ("reason", ExactCharField(max_length=20, verbose_name="reason")),
                (
                    "fingerprint",
                    ExactCharField(db_index=True, max_length=16, verbose_name="fingerprint"),
                ),
                ("error_message", models.TextField(blank=True, verbose_name="error")),
                ("attempts", models.IntegerField(verbose_name="attempts")),
                (
                    "args",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        default=list, verbose_name="arguments"
                    ),
                ),
                (
                    "kwargs",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        default=dict, verbose_name="keyword arguments"
                    ),
                ),
                ("created_at", InstantField(verbose_name="created at")),
                (
                    "resolved_at",
                    InstantField(blank=True, null=True, verbose_name="resolved at"),
                ),
                (
                    "resolution",
                    ExactCharField(
                        blank=True,
                        choices=[("REPLAYED", "REPLAYED"), ("DISCARDED", "DISCARDED")],
                        default="",
                        max_length=9,
                        verbose_name="resolution",
                    ),
                ),
                (
                    "resolved_by",
                    ExactCharField(
                        blank=True, default="", max_length=200, verbose_name="resolved by"
                    ),
                ),
                (
                    "comment",
                    ExactCharField(blank=True, default="", max_length=500, verbose_name="comment"),
                ),
                (
                    "task",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="dead_letters",
                        to="django_durable_tasks.task",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_default=1,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
                (
                    "encryption_key",
                    ExactCharField(
                        blank=True,
                        editable=False,
                        max_length=40,
                        null=True,
                        verbose_name="encryption key",
                    ),
                ),
            ],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "db_table": "durable_tasks_dead_letter",
                "ordering": ["-id"],
                "permissions": [
                    ("replay_deadletter", "Can replay"),
                    ("discard_deadletter", "Can discard"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Calendar",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", ExactCharField(max_length=200, verbose_name="name")),
                (
                    "description",
                    ExactCharField(
                        blank=True, default="", max_length=500, verbose_name="description"
                    ),
                ),
                (
                    "working_days",
                    models.JSONField(
                        default=django_durable_tasks.models.schedules._monday_to_friday,
                        help_text="ISO weekdays, 1 Monday to 7 Sunday.",
                        verbose_name="working days",
                    ),
                ),
                ("days", models.JSONField(default=list, verbose_name="dates")),
                (
                    "origin",
                    ExactCharField(blank=True, default="", max_length=200, verbose_name="origin"),
                ),
                ("revision", models.BigIntegerField(default=0, verbose_name="revision")),
                (
                    "updated_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="updated at",
                    ),
                ),
                (
                    "updated_by",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="updated by"
                    ),
                ),
                (
                    "reason",
                    ExactCharField(
                        blank=True, db_default="", max_length=500, verbose_name="reason"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_default=1,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "calendar",
                "verbose_name_plural": "calendars",
                "db_table": "durable_tasks_calendar",
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="WorkflowRun",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=django_durable_tasks.models.tasks.new_task_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("name", ExactCharField(db_index=True, max_length=200, verbose_name="name")),
                (
                    "status",
                    ExactCharField(
                        choices=[
                            ("STARTING", "STARTING"),
                            ("RUNNING", "RUNNING"),
                            ("SUCCESS", "SUCCESS"),
                            ("FAILED", "FAILED"),
                            ("CANCELLED", "CANCELLED"),
                        ],
                        max_length=9,
                        verbose_name="status",
                    ),
                ),
                (
                    "key",
                    ExactCharField(blank=True, max_length=200, null=True, verbose_name="key"),
                ),
                ("open_key", ExactCharField(editable=False, max_length=200, null=True)),
                ("parent", models.UUIDField(blank=True, null=True, verbose_name="parent run")),
                (
                    "root",
                    models.UUIDField(
                        db_index=True,
                        help_text="The run itself, or the one it is a part of.",
                        verbose_name="outermost run",
                    ),
                ),
                ("released", models.BooleanField(db_default=True, editable=False)),
                (
                    "recurring_task",
                    models.UUIDField(blank=True, null=True, verbose_name="recurring task"),
                ),
                (
                    "fire_time",
                    InstantField(blank=True, null=True, verbose_name="fire time"),
                ),
                (
                    "deadline_at",
                    InstantField(blank=True, null=True, verbose_name="deadline"),
                ),
                ("callbacks", models.JSONField(blank=True, default=dict, verbose_name="callbacks")),
                ("total", models.IntegerField(db_default=0, verbose_name="tasks")),
                ("succeeded", models.IntegerField(db_default=0, verbose_name="succeeded")),
                ("failed", models.IntegerField(db_default=0, verbose_name="failed")),
                ("cancelled", models.IntegerField(db_default=0, verbose_name="cancelled")),
                ("skipped", models.IntegerField(db_default=0, verbose_name="skipped")),
                ("expired", models.IntegerField(db_default=0, verbose_name="expired")),
                (
                    "reason",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="reason"
                    ),
                ),
                (
                    "cancel_requested_at",
                    InstantField(blank=True, null=True, verbose_name="cancel requested at"),
                ),
                (
                    "created_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="created at",
                    ),
                ),
                (
                    "updated_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="updated at",
                    ),
                ),
                (
                    "sealed_at",
                    InstantField(blank=True, null=True, verbose_name="sealed at"),
                ),
                (
                    "completed_at",
                    InstantField(blank=True, null=True, verbose_name="completed at"),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_default=1,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "workflow run",
                "verbose_name_plural": "workflow runs",
                "db_table": "durable_tasks_workflow_run",
                "ordering": ["-id"],
                "permissions": [
                    ("cancel_workflowrun", "Can cancel workflows and branches"),
                    ("retry_workflowrun", "Can retry workflows"),
                    ("force_workflowrun", "Can force-run and force-complete tasks of workflows"),
                ],
            },
        ),
        migrations.AddField(
            model_name="task",
            name="workflow",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="tasks",
                to="django_durable_tasks.workflowrun",
            ),
        ),
        migrations.CreateModel(
            name="TaskDependency",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "dependency_type",
                    ExactCharField(
                        choices=[
                            ("MUST_SUCCEED", "MUST_SUCCEED"),
                            ("MUST_FINISH", "MUST_FINISH"),
                            ("MUST_FAIL", "MUST_FAIL"),
                        ],
                        db_default="MUST_SUCCEED",
                        max_length=12,
                        verbose_name="dependency type",
                    ),
                ),
                (
                    "gate",
                    ExactCharField(
                        blank=True,
                        choices=[("APPROVAL", "APPROVAL"), ("HOLD", "HOLD")],
                        max_length=8,
                        null=True,
                        verbose_name="gate",
                    ),
                ),
                (
                    "on_upstream_failure",
                    ExactCharField(
                        blank=True,
                        choices=[
                            ("SKIP", "SKIP"),
                            ("FAIL", "FAIL"),
                            ("WAIT", "WAIT"),
                            ("RUN", "RUN"),
                        ],
                        help_text="Empty: as the task says.",
                        max_length=4,
                        null=True,
                        verbose_name="on upstream failure",
                    ),
                ),
                (
                    "resolved_at",
                    InstantField(blank=True, null=True, verbose_name="resolved at"),
                ),
                (
                    "outcome",
                    ExactCharField(blank=True, max_length=9, null=True, verbose_name="outcome"),
                ),
                ("met", models.BooleanField(blank=True, null=True, verbose_name="met")),
                (
                    "placed_by",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="placed by"
                    ),
                ),
                (
                    "resolved_by",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="resolved by"
                    ),
                ),
                (
                    "comment",
                    ExactCharField(
                        blank=True, db_default="", max_length=500, verbose_name="comment"
                    ),
                ),
                (
                    "depends_on",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="dependents",
                        to="django_durable_tasks.task",
                        verbose_name="depends on",
                    ),
                ),
                (
                    "task",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="dependencies",
                        to="django_durable_tasks.task",
                        verbose_name="task",
                    ),
                ),
            ],
            options={
                "verbose_name": "dependency",
                "verbose_name_plural": "dependencies",
                "db_table": "durable_tasks_dependency",
                "ordering": ["id"],
                "permissions": [("approve_taskdependency", "Can open approvals and holds")],
                "indexes": [
                    django_durable_tasks.models.fields.PartialIndex(
                        elsewhere=("depends_on", "task"),
                        fields=["depends_on", "task"],
                        name="durable_dependency_below",
                        where=models.Q(("depends_on__isnull", False)),
                    ),
                    django_durable_tasks.models.fields.PartialIndex(
                        elsewhere=("task", "resolved_at"),
                        fields=["task"],
                        name="durable_dependency_unresolved",
                        where=models.Q(("resolved_at__isnull", True)),
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("task", "depends_on"), name="durable_one_edge"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("depends_on__isnull", False), ("gate__isnull", True)),
                            models.Q(("depends_on__isnull", True), ("gate__isnull", False)),
                            _connector="OR",
                        ),
                        name="durable_edge_or_gate",
                    ),
                ],
            },
        ),
        migrations.AddIndex(
            model_name="recurringtask",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("next_run_at",),
                fields=["next_run_at"],
                name="durable_recurring_next",
                where=models.Q(("next_run_at__isnull", False)),
            ),
        ),
        migrations.AddConstraint(
            model_name="recurringtask",
            constraint=models.UniqueConstraint(
                fields=("tenant", "name"), name="durable_recurring_name"
            ),
        ),
        migrations.AddConstraint(
            model_name="recurringtask",
            constraint=django_durable_tasks.models.fields.PresentUnique(
                fields=("tenant", "idempotency_key"), name="durable_recurring_idempotent"
            ),
        ),
        migrations.AddIndex(
            model_name="occurrencerecord",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("recurring_task", "fire_time"),
                fields=["recurring_task", "fire_time"],
                name="durable_occurrence_ranges",
                where=models.Q(("unique_fire_time__isnull", True)),
            ),
        ),
        migrations.AddConstraint(
            model_name="occurrencerecord",
            constraint=django_durable_tasks.models.fields.PresentUnique(
                fields=("recurring_task", "unique_fire_time"), name="durable_one_occurrence"
            ),
        ),
        migrations.AddConstraint(
            model_name="occurrencerecord",
            constraint=django_durable_tasks.models.fields.PresentUnique(
                fields=("recurring_task", "request_id"), name="durable_one_request"
            ),
        ),
        migrations.AddConstraint(
            model_name="deadletter",
            constraint=django_durable_tasks.models.fields.PresentUnique(
                fields=("open_task",), name="durable_one_open_dead_letter"
            ),
        ),
        migrations.AddConstraint(
            model_name="calendar",
            constraint=models.UniqueConstraint(
                fields=("tenant", "name"), name="durable_calendar_name"
            ),
        ),
        migrations.AddIndex(
            model_name="workflowrun",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("completed_at", "deadline_at"),
                fields=["deadline_at"],
                name="durable_workflow_deadline",
                where=models.Q(("completed_at__isnull", True), ("deadline_at__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="workflowrun",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("completed_at", "status"),
                fields=["status"],
                name="durable_workflow_open",
                where=models.Q(("completed_at__isnull", True)),
            ),
        ),
        migrations.AddIndex(
            model_name="workflowrun",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("parent", "completed_at"),
                fields=["completed_at"],
                name="durable_workflow_ended",
                where=models.Q(("completed_at__isnull", False), ("parent__isnull", True)),
            ),
        ),
        migrations.AddIndex(
            model_name="workflowrun",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("recurring_task", "completed_at"),
                fields=["recurring_task", "completed_at"],
                name="durable_workflow_recurring",
                where=models.Q(("recurring_task__isnull", False)),
            ),
        ),
        migrations.AddConstraint(
            model_name="workflowrun",
            constraint=django_durable_tasks.models.fields.PresentUnique(
                fields=("tenant", "open_key"), name="durable_one_open_workflow_key"
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("status", "in_batch", "queue", "priority", "due_at"),
                fields=["queue", "priority", "due_at"],
                name="durable_task_pending",
                where=models.Q(("in_batch", False), ("status", "PENDING")),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("status", "in_batch", "queue", "tenant", "priority", "due_at"),
                fields=["queue", "tenant", "priority", "due_at"],
                name="durable_task_turns",
                where=models.Q(("in_batch", False), ("status", "PENDING"), ("tenant__gt", 1)),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("status", "in_batch", "queue", "name", "priority", "due_at"),
                fields=["queue", "name", "priority", "due_at"],
                name="durable_task_batch",
                where=models.Q(("in_batch", True), ("status", "PENDING")),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("status", "due_at"),
                fields=["due_at"],
                name="durable_task_queued",
                where=models.Q(("status", "QUEUED")),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("status", "node"),
                fields=["node"],
                name="durable_task_running",
                where=models.Q(("status", "RUNNING")),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("unique_key",),
                fields=["unique_key"],
                name="durable_task_unique_key",
                where=models.Q(("unique_key__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("key",),
                fields=["key"],
                name="durable_task_key",
                where=models.Q(("key__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("recurring_task", "fire_time"),
                fields=["recurring_task", "fire_time"],
                name="durable_task_recurring",
                where=models.Q(("recurring_task__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("overlap_key", "completed_at"),
                fields=["overlap_key"],
                name="durable_task_overlap",
                where=models.Q(("completed_at__isnull", True), ("overlap_key__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("status", "completed_at"),
                fields=["status", "completed_at"],
                name="durable_task_ended",
                where=models.Q(("completed_at__isnull", False), ("workflow__isnull", True)),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("workflow",),
                fields=["workflow"],
                name="durable_task_workflow",
                where=models.Q(("workflow__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("waiting_for_limit", "-priority", "ready_at", "id"),
                fields=["waiting_for_limit", "-priority", "ready_at", "id"],
                name="durable_task_waiting",
                where=models.Q(("waiting_for_limit__isnull", False)),
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=django_durable_tasks.models.fields.PresentUnique(
                fields=("tenant", "idempotency_key"), name="durable_task_idempotent"
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=django_durable_tasks.models.fields.PresentUnique(
                fields=("tenant", "open_key"), name="durable_task_one_open_key"
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=django_durable_tasks.models.fields.PresentUnique(
                fields=("tenant", "open_unique_key"), name="durable_task_one_open_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("due_at__isnull", False), ("status__in", ["PENDING", "QUEUED"])),
                    models.Q(
                        models.Q(("status__in", ["PENDING", "QUEUED"]), _negated=True),
                        ("due_at__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="durable_task_due_at",
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("lease_until__isnull", False),
                        ("run_id__isnull", False),
                        ("status", "RUNNING"),
                    ),
                    models.Q(
                        models.Q(("status", "RUNNING"), _negated=True),
                        ("lease_until__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="durable_task_lease",
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("tenant", "id"),
                fields=["tenant", "id"],
                name="durable_task_tenant",
                where=models.Q(("tenant__gt", 1)),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("tenant", "status", "id"),
                fields=["tenant", "status", "id"],
                name="durable_task_rare",
                where=models.Q(
                    ("status__in", ["CANCELLED", "EXPIRED", "FAILED", "SKIPPED"]),
                    models.Q(("completed_at__isnull", True), ("tenant__gt", 1)),
                    _connector="OR",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=models.Index(fields=["tenant", "id"], name="durable_dead_letter_tenant"),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("tenant", "open_task"),
                fields=["tenant", "id"],
                name="durable_dead_letter_open",
                where=models.Q(("open_task__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="workflowrun",
            index=models.Index(fields=["tenant", "id"], name="durable_workflow_tenant"),
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="at",
                    ),
                ),
                (
                    "source",
                    ExactCharField(
                        choices=[
                            ("API", "API"),
                            ("ADMIN", "ADMIN"),
                            ("COMMAND", "COMMAND"),
                            ("CODE", "CODE"),
                            ("SYNC", "SYNC"),
                        ],
                        max_length=8,
                        verbose_name="source",
                    ),
                ),
                (
                    "actor",
                    ExactCharField(blank=True, default="", max_length=200, verbose_name="actor"),
                ),
                ("operation", ExactCharField(max_length=60, verbose_name="operation")),
                ("object_type", ExactCharField(max_length=20, verbose_name="object type")),
                (
                    "object_id",
                    ExactCharField(
                        blank=True, default="", max_length=250, verbose_name="object id"
                    ),
                ),
                ("count", models.IntegerField(default=1, verbose_name="number of objects")),
                ("object_ids", models.JSONField(default=list, verbose_name="object ids")),
                ("before", models.JSONField(default=dict, verbose_name="before")),
                ("after", models.JSONField(default=dict, verbose_name="after")),
                (
                    "reason",
                    ExactCharField(blank=True, default="", max_length=500, verbose_name="reason"),
                ),
                ("address", models.GenericIPAddressField(null=True, verbose_name="IP address")),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        help_text="Empty for objects of the whole installation, such as limits.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit entries",
                "db_table": "durable_tasks_audit_entry",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["tenant", "id"], name="durable_audit_tenant"),
                    models.Index(
                        fields=["tenant", "operation", "id"], name="durable_audit_tenant_op"
                    ),
                    models.Index(
                        fields=["tenant", "actor", "id"], name="durable_audit_tenant_actor"
                    ),
                    models.Index(fields=["operation", "id"], name="durable_audit_operation"),
                    models.Index(fields=["actor", "id"], name="durable_audit_actor"),
                    models.Index(
                        fields=["object_type", "object_id", "id"], name="durable_audit_object"
                    ),
                ],
            },
        ),
        migrations.RunPython(set_storage, migrations.RunPython.noop),
        migrations.RunPython(first_rows, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name="task",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("encryption_key", "id"),
                fields=["encryption_key", "id"],
                name="durable_task_encryption",
                where=models.Q(("encryption_key__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="recurringtask",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("encryption_key", "id"),
                fields=["encryption_key", "id"],
                name="durable_recurring_encryption",
                where=models.Q(("encryption_key__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            model_name="deadletter",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("encryption_key", "id"),
                fields=["encryption_key", "id"],
                name="durable_letter_encryption",
                where=models.Q(("encryption_key__isnull", False)),
            ),
        ),
    ]
