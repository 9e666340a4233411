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
    "django_durable_tasks.contrib.metrics",
    "django_durable_tasks.contrib.verify",
    "django_durable_tasks.contrib.api",
    "django_durable_tasks.contrib.callbacks",
    "django_durable_tasks.contrib.database_transport",
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
SWITCHED_OFF = GIVEN.get("switched_off")

# Only for the benchmark of the admin, so that the processes of the others do not load it.
if GIVEN.get("admin"):
    INSTALLED_APPS += [
        "django.contrib.admin",
        "django.contrib.messages",
        "django.contrib.sessions",
    ]
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ]
    ROOT_URLCONF = "benchmarks.project.admin_urls"
    STATIC_URL = "static/"
