"""The settings of a project whose beat is recorded, by one line."""

from datetime import timedelta

from django_durable_tasks.contrib.beat import listener
from tests.settings import *  # noqa: F403

listener.listen()

CELERY_BEAT_SCHEDULE = {
    "plain": {"task": "shop.tasks.plain", "schedule": timedelta(seconds=1)},
    "durable": {"task": "tests.project.tasks.noop", "schedule": timedelta(seconds=1)},
}
