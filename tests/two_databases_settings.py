"""The settings of a project with its tasks in a second database. The environment variable ROUTER
names its router.
"""

import json
import os

from tests.backends import broker_settings, database_settings
from tests.settings import *  # noqa: F403
from tests.settings import FOLDER, RUN, VENDOR

DATABASES = {
    "default": database_settings(VENDOR, f"test_durable_{RUN}_site", FOLDER),
    "tasks": database_settings(VENDOR, f"test_durable_{RUN}_tasks", FOLDER),
}
DATABASE_ROUTERS = [name for name in [os.environ.get("ROUTER")] if name]
DURABLE_TASKS = {**json.loads(os.environ.get("TEST_DURABLE_TASKS", "{}")), "DATABASE": "tasks"}

CELERY_BROKER_URL, CELERY_BROKER_TRANSPORT_OPTIONS = broker_settings(
    "filesystem", FOLDER / "two_databases"
)
