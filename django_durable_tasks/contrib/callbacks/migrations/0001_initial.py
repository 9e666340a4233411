import django.db.models.deletion
from django.db import migrations, models

import django_durable_tasks.models.fields
from django_durable_tasks.models.fields import ExactCharField, InstantField


class Migration(migrations.Migration):
    initial = True

    dependencies = [("django_durable_tasks", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="DeliveryAttempt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("attempt_number", models.IntegerField(verbose_name="attempt")),
                ("run_id", models.UUIDField(null=True, verbose_name="run id")),
                ("outcome", ExactCharField(max_length=6, verbose_name="outcome")),
                ("started_at", InstantField(verbose_name="started at")),
                ("method", ExactCharField(max_length=7, verbose_name="method")),
                ("url", models.TextField(verbose_name="URL")),
                ("endpoint", ExactCharField(max_length=300, verbose_name="endpoint")),
                (
                    "request_headers",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        default=list, verbose_name="request headers"
                    ),
                ),
                ("request_bytes", models.IntegerField(default=0, verbose_name="size of the body")),
                ("status", models.SmallIntegerField(null=True, verbose_name="status")),
                (
                    "failure",
                    ExactCharField(blank=True, default="", max_length=11, verbose_name="failure"),
                ),
                (
                    "reason",
                    ExactCharField(blank=True, default="", max_length=200, verbose_name="reason"),
                ),
                ("retry_delay", models.FloatField(null=True, verbose_name="retry delay")),
                (
                    "response_headers",
                    django_durable_tasks.models.fields.EncryptedJSONField(
                        default=list, verbose_name="response headers"
                    ),
                ),
                (
                    "response_body",
                    models.TextField(
                        blank=True, default="", verbose_name="first bytes of the answer"
                    ),
                ),
                (
                    "response_truncated",
                    models.BooleanField(default=False, verbose_name="answer truncated"),
                ),
                ("dns_seconds", models.FloatField(null=True, verbose_name="DNS")),
                ("connect_seconds", models.FloatField(null=True, verbose_name="connection")),
                ("tls_seconds", models.FloatField(null=True, verbose_name="TLS")),
                ("first_byte_seconds", models.FloatField(null=True, verbose_name="first byte")),
                ("total_seconds", models.FloatField(verbose_name="total")),
                (
                    "task",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
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
                "verbose_name": "delivery attempt",
                "verbose_name_plural": "delivery attempts",
                "db_table": "durable_tasks_delivery_attempt",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Endpoint",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "key",
                    ExactCharField(
                        help_text="The limit key of its tasks: the origin of the URL, or `endpoint=`.",
                        max_length=200,
                        unique=True,
                        verbose_name="key",
                    ),
                ),
                ("failures", models.IntegerField(db_default=0, verbose_name="failures in a row")),
                (
                    "openings",
                    models.IntegerField(
                        db_default=0, verbose_name="openings since the last success"
                    ),
                ),
                (
                    "open_until",
                    InstantField(blank=True, null=True, verbose_name="open until"),
                ),
                (
                    "probe_until",
                    InstantField(blank=True, null=True, verbose_name="probe until"),
                ),
                (
                    "gone_at",
                    InstantField(
                        blank=True,
                        help_text="When it ended deliveries, for example with 410.",
                        null=True,
                        verbose_name="gone at",
                    ),
                ),
                (
                    "last_failure",
                    ExactCharField(
                        blank=True, db_default="", max_length=200, verbose_name="last failure"
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
                "verbose_name": "endpoint",
                "verbose_name_plural": "endpoints",
                "db_table": "durable_tasks_endpoint",
                "ordering": ["key"],
                "indexes": [
                    django_durable_tasks.models.fields.PartialIndex(
                        elsewhere=("open_until",),
                        fields=["open_until"],
                        name="durable_endpoint_open",
                        where=models.Q(("open_until__isnull", False)),
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="deliveryattempt",
            index=django_durable_tasks.models.fields.PartialIndex(
                elsewhere=("encryption_key", "id"),
                fields=["encryption_key", "id"],
                name="durable_delivery_encryption",
                where=models.Q(("encryption_key__isnull", False)),
            ),
        ),
    ]
