"""A plugin of pytest that sets up Django before Celery's integration tests are imported.

TEST_DATABASE, TEST_RUN and TEST_FOLDER name the database, which exists.
"""

import os
from pathlib import Path

import django
from django.conf import settings

from tests.backends import database_settings

settings.configure(
    SECRET_KEY="only for tests",
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django_durable_tasks",
        "django_durable_tasks.contrib.database_transport",
    ],
    DATABASES={
        "default": database_settings(
            os.environ["TEST_DATABASE"],
            f"test_durable_{os.environ['TEST_RUN']}",
            Path(os.environ["TEST_FOLDER"]),
        )
    },
)
django.setup()
