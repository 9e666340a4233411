"""Weights: how many places and tokens of each limit a task takes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_durable_tasks", "0008_node_states"),
    ]

    operations = [
        migrations.AddField(
            model_name="task",
            name="weight",
            field=models.SmallIntegerField(
                db_default=1, help_text="How many places and tokens of each limit it takes.", verbose_name="weight"
            ),
        ),
    ]
