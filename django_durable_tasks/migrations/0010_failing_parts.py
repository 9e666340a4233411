from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_durable_tasks", "0009_weights"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="failing",
            field=models.JSONField(
                blank=True,
                help_text="Parts of a scheduler that fail: what, the error, how often in a row and for how many seconds.",
                null=True,
                verbose_name="failing",
            ),
        ),
    ]
