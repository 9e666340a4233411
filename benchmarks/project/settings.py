"""Settings from the environment variable BENCHMARK, a JSON object: database, broker, queue,
durable.
"""

import json
import os
from urllib.parse import unquote, urlsplit

GIVEN = json.loads(os.environ["BENCHMARK"])
_parts = urlsplit(GIVEN["database"])

SECRET_KEY = "only for benchmarks"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_durable_tasks",
    "benchmarks.project",
]
ROOT_URLCONF = "benchmarks.project.rest"
ALLOWED_HOSTS = ["testserver"]
REST_FRAMEWORK = {"UNAUTHENTICATED_USER": None}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parts.path.strip("/"),
        "USER": unquote(_parts.username or ""),
        "PASSWORD": unquote(_parts.password or ""),
        "HOST": _parts.hostname or "",
        "PORT": _parts.port or "",
        "CONN_MAX_AGE": None,
    }
}
CELERY_BROKER_URL = GIVEN["broker"]
CELERY_TASK_DEFAULT_QUEUE = GIVEN["queue"]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
DURABLE_TASKS = GIVEN["durable"]
