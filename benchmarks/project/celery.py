"""The Celery application; `celery -A benchmarks.project worker` finds it."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.project.settings")

app = Celery("benchmarks.project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
