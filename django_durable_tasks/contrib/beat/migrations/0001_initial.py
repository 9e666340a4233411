from django.db import migrations, models

from django_durable_tasks.models.fields import ExactCharField, InstantField, StatementTime


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ShadowFire",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", ExactCharField(max_length=200, verbose_name="name")),
                ("task", ExactCharField(max_length=200, verbose_name="task")),
                (
                    "celery_id",
                    ExactCharField(
                        blank=True, default="", max_length=200, verbose_name="Celery id"
                    ),
                ),
                (
                    "recorded_at",
                    InstantField(
                        db_default=StatementTime(),
                        verbose_name="recorded at",
                    ),
                ),
            ],
            options={
                "verbose_name": "fire of beat",
                "verbose_name_plural": "fires of beat",
                "db_table": "durable_tasks_shadow_fire",
                "ordering": ["id"],
                "indexes": [models.Index(fields=["recorded_at"], name="durable_shadow_recorded")],
            },
        ),
    ]
