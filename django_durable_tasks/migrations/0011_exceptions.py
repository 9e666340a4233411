"""The class and the arguments of an attempt's exception."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_durable_tasks", "0010_failing_parts"),
    ]

    operations = [
        migrations.AddField(
            model_name="taskexecutionlog",
            name="exception",
            field=models.JSONField(null=True, verbose_name="exception"),
        ),
    ]
