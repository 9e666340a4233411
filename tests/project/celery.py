"""The Celery application of the test project; `celery -A tests.project worker` finds it."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

app = Celery("tests.project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.autodiscover_tasks(["tests.project"], related_name="bodies")
app.autodiscover_tasks(["tests.project"], related_name="batched")
app.autodiscover_tasks(["tests.project"], related_name="coroutines")
app.autodiscover_tasks(["tests.project"], related_name="stepping")
app.autodiscover_tasks(["tests.project"], related_name="observed")
app.autodiscover_tasks(["tests.project"], related_name="canvas")
app.autodiscover_tasks(["tests.project"], related_name="nodes")
app.autodiscover_tasks(["tests.project"], related_name="removable")
app.autodiscover_tasks(["tests.project"], related_name="celery_usages")
