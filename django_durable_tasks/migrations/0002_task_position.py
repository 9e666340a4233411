"""The position of tasks with steps. A nullable column without a default rewrites no table."""

from django.db import migrations

from django_durable_tasks.models.fields import EncryptedJSONField


class Migration(migrations.Migration):
    """Adds ``Task.position``."""

    dependencies = [("django_durable_tasks", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="task",
            name="position",
            field=EncryptedJSONField(editable=False, null=True, verbose_name="position"),
        ),
    ]
