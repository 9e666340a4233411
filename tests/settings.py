"""Django's settings in every pytest run and in its processes. TEST_DATABASE and TEST_BROKER select
the servers.

TEST_RUN names what belongs to one run (databases, queues, folders). Processes started by a test
inherit it with the environment and so use the same database, broker and queues.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from django import VERSION

from tests.backends import broker_settings, database_settings

# Otherwise each process compiles the whole project. pytest reads the settings before conftest.py.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

VENDOR = os.environ.setdefault("TEST_DATABASE", "sqlite")
BROKER = os.environ.setdefault("TEST_BROKER", "memory")
RUN = os.environ.setdefault("TEST_RUN", f"{os.getpid()}")
FOLDER = Path(os.environ.setdefault("TEST_FOLDER", f"{tempfile.gettempdir()}/durable-tests-{RUN}"))
# Each worker of pytest-xdist (`pytest -n 2 --dist loadfile`) is a run of its own.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if WORKER and FOLDER.name != WORKER:
    RUN = os.environ["TEST_RUN"] = f"{RUN}_{WORKER}"
    FOLDER = FOLDER / WORKER
    os.environ["TEST_FOLDER"] = str(FOLDER)

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
# TEST_USE_TZ=0 runs a suite in a project that stores wall times in its own tables.
USE_TZ = os.environ.get("TEST_USE_TZ", "1") == "1"
TIME_ZONE = "UTC" if USE_TZ else "Europe/Berlin"
LANGUAGE_CODE = "en"
STATIC_URL = "/static/"
ROOT_URLCONF = "tests.project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
if VERSION >= (6, 1):  # which deprecates the setting that older versions need
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
else:
    EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.admin",
    "django_celery_results",
    "django_durable_tasks",
    "django_durable_tasks.contrib.metrics",
    "django_durable_tasks.contrib.verify",
    "django_durable_tasks.contrib.diagrams",
    "django_durable_tasks.contrib.api",
    "django_durable_tasks.contrib.callbacks",
    "django_durable_tasks.contrib.notifications",
    "django_durable_tasks.contrib.beat",
    "django_durable_tasks.contrib.database_transport",
    "tests.project",
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

DATABASES = {"default": database_settings(VENDOR, f"test_durable_{RUN}", FOLDER)}

CELERY_BROKER_URL, CELERY_BROKER_TRANSPORT_OPTIONS = broker_settings(BROKER, FOLDER)
CELERY_TASK_DEFAULT_QUEUE = f"durable-test-{RUN}"
# Commands reach the workers of this run only, not those of runs beside it on the same broker.
CELERY_CONTROL_EXCHANGE = f"durable-test-{RUN}"
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# As install.md says for RabbitMQ; the default since Celery 5.7.
CELERY_CONTROL_QUEUE_EXCLUSIVE = CELERY_EVENT_QUEUE_EXCLUSIVE = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_RESULT_BACKEND = os.environ.get("TEST_RESULT_BACKEND")
CELERY_RESULT_EXTENDED = bool(CELERY_RESULT_BACKEND)
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# RabbitMQ keeps priorities only in queues that were declared with a maximum priority.
# Quorum queues have none.
_QUORUM = bool(os.environ.get("TEST_QUORUM"))
CELERY_TASK_QUEUE_MAX_PRIORITY = None if _QUORUM else 10
if _QUORUM:
    CELERY_TASK_DEFAULT_QUEUE_TYPE = CELERY_TASK_CREATE_MISSING_QUEUE_TYPE = "quorum"

TASKS = {
    "default": {
        "BACKEND": "django_durable_tasks.backends.DurableTasksBackend",
        "QUEUES": [],
    }
}
DURABLE_TASKS = json.loads(os.environ.get("TEST_DURABLE_TASKS", "{}"))

if os.environ.get("TEST_LOUD"):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "loggers": {"django_durable_tasks": {"handlers": ["console"], "level": "INFO"}},
    }
