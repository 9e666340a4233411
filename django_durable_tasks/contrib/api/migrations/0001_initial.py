import django.db.models.deletion
from django.db import migrations, models

import django_durable_tasks.models.fields
import django_durable_tasks.models.tasks
from django_durable_tasks.models.fields import ExactCharField, InstantField


class Migration(migrations.Migration):
    initial = True

    dependencies = [("django_durable_tasks", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="api_keys",
                        to="django_durable_tasks.tenant",
                    ),
                ),
                (
                    "name",
                    ExactCharField(
                        help_text="What uses the key. A rotation keeps the name.",
                        max_length=100,
                        verbose_name="name",
                    ),
                ),
                ("identifier", ExactCharField(max_length=8, unique=True, verbose_name="id")),
                (
                    "mode",
                    ExactCharField(
                        choices=[("live", "live"), ("test", "test")],
                        max_length=4,
                        verbose_name="mode",
                    ),
                ),
                ("digest", ExactCharField(editable=False, max_length=64)),
                ("scopes", models.JSONField(default=list, verbose_name="scopes")),
                (
                    "created_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="created at",
                    ),
                ),
                (
                    "created_by",
                    ExactCharField(
                        blank=True, default="", max_length=200, verbose_name="created by"
                    ),
                ),
                (
                    "expires_at",
                    InstantField(blank=True, null=True, verbose_name="expires at"),
                ),
                (
                    "revoked_at",
                    InstantField(blank=True, null=True, verbose_name="revoked at"),
                ),
                (
                    "revoked_by",
                    ExactCharField(
                        blank=True, default="", max_length=200, verbose_name="revoked by"
                    ),
                ),
                (
                    "reason",
                    ExactCharField(blank=True, default="", max_length=500, verbose_name="reason"),
                ),
                (
                    "last_used_at",
                    InstantField(blank=True, null=True, verbose_name="last used at"),
                ),
            ],
            options={
                "verbose_name": "API key",
                "verbose_name_plural": "API keys",
                "db_table": "durable_tasks_api_key",
                "ordering": ["-id"],
                "permissions": [("revoke_apikey", "Can revoke")],
            },
        ),
        migrations.CreateModel(
            name="IdempotentRequest",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
                ("key", ExactCharField(max_length=200)),
                ("operation", ExactCharField(max_length=200)),
                ("fingerprint", ExactCharField(max_length=64)),
                ("status_code", models.SmallIntegerField(default=0)),
                ("headers", models.JSONField(default=dict)),
                ("body", models.JSONField(null=True)),
                (
                    "created_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(), db_index=True
                    ),
                ),
            ],
            options={
                "db_table": "durable_tasks_idempotent_request",
            },
        ),
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(fields=["tenant", "name"], name="durable_api_key_name"),
        ),
        migrations.AddConstraint(
            model_name="idempotentrequest",
            constraint=models.UniqueConstraint(
                fields=("tenant", "key", "operation"), name="durable_idempotent_request_once"
            ),
        ),
        migrations.CreateModel(
            name="TenantQuota",
            fields=[
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="quota",
                        serialize=False,
                        to="django_durable_tasks.tenant",
                    ),
                ),
                (
                    "open_tasks",
                    models.IntegerField(blank=True, null=True, verbose_name="open tasks"),
                ),
                (
                    "recurring_tasks",
                    models.IntegerField(blank=True, null=True, verbose_name="recurring tasks"),
                ),
                (
                    "runs_per_day",
                    models.IntegerField(
                        blank=True, null=True, verbose_name="runs of a recurring task in a day"
                    ),
                ),
                (
                    "calendars",
                    models.IntegerField(blank=True, null=True, verbose_name="calendars"),
                ),
                (
                    "payload_bytes",
                    models.IntegerField(
                        blank=True, null=True, verbose_name="bytes of the arguments of a task"
                    ),
                ),
                (
                    "requests",
                    ExactCharField(
                        blank=True, db_default="", max_length=20, verbose_name="requests"
                    ),
                ),
                (
                    "set_by",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="set by"
                    ),
                ),
                (
                    "reason",
                    ExactCharField(
                        blank=True, db_default="", max_length=500, verbose_name="reason"
                    ),
                ),
                ("set_at", InstantField(blank=True, null=True, verbose_name="set at")),
                ("creations_left", models.IntegerField(db_default=0, editable=False)),
                ("notified_at", models.JSONField(default=dict, editable=False)),
            ],
            options={
                "verbose_name": "quota",
                "verbose_name_plural": "quotas",
                "db_table": "durable_tasks_tenant_quota",
                "permissions": [("set_tenantquota", "Can set the quotas of a tenant")],
            },
        ),
        migrations.CreateModel(
            name="StaffTenant",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("user_key", ExactCharField(max_length=100)),
                ("username", ExactCharField(max_length=200, verbose_name="user name")),
                (
                    "assigned_by",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="assigned by"
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
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="staff",
                        to="django_durable_tasks.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "staff user of a tenant",
                "verbose_name_plural": "staff users of tenants",
                "db_table": "durable_tasks_staff_tenant",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("user_key", "tenant"), name="durable_staff_tenant"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkOperation",
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
                (
                    "kind",
                    ExactCharField(
                        choices=[("CANCEL", "CANCEL"), ("REPLAY", "REPLAY")],
                        max_length=6,
                        verbose_name="kind",
                    ),
                ),
                ("filters", models.JSONField(default=dict, verbose_name="filters")),
                ("last_id", models.UUIDField(null=True)),
                ("until_id", models.UUIDField()),
                ("matched", models.IntegerField(db_default=0, verbose_name="matched")),
                ("changed", models.IntegerField(db_default=0, verbose_name="changed")),
                ("failed", models.IntegerField(db_default=0, verbose_name="failed")),
                ("errors", models.JSONField(default=list, verbose_name="errors")),
                (
                    "created_by",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="created by"
                    ),
                ),
                (
                    "reason",
                    ExactCharField(
                        blank=True, db_default="", max_length=500, verbose_name="reason"
                    ),
                ),
                (
                    "created_at",
                    InstantField(
                        db_default=django_durable_tasks.models.fields.StatementTime(),
                        verbose_name="created at",
                    ),
                ),
                (
                    "completed_at",
                    InstantField(blank=True, null=True, verbose_name="completed at"),
                ),
                (
                    "task",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="django_durable_tasks.task",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="django_durable_tasks.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "bulk operation",
                "verbose_name_plural": "bulk operations",
                "db_table": "durable_tasks_bulk_operation",
                "ordering": ["-id"],
                "indexes": [
                    models.Index(fields=["tenant", "id"], name="durable_bulk_tenant"),
                    models.Index(fields=["created_at"], name="durable_bulk_created"),
                ],
            },
        ),
    ]
