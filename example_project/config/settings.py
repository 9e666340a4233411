"""The settings of the billing platform.

By default it requires no server: SQLite and a folder of messages under `var`. Environment variables
change this: DATABASE_URL, BROKER_URL, BILLING_FOLDER (files), QUEUE_PREFIX, and DURABLE_TASKS
(JSON).
"""

import json
import os
from pathlib import Path

from django import VERSION
from kombu import Queue

from config.addresses import database

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("BILLING_FOLDER") or PROJECT / "var")
FOLDER.mkdir(parents=True, exist_ok=True)

SECRET_KEY = "only for the example"
DEBUG = True
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
ROOT_URLCONF = "config.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.admin",
    "django_durable_tasks",
    "django_durable_tasks.contrib.metrics",
    "django_durable_tasks.contrib.verify",
    "django_durable_tasks.contrib.diagrams",
    "django_durable_tasks.contrib.api",
    "django_durable_tasks.contrib.callbacks",
    "django_durable_tasks.contrib.notifications",
    "django_durable_tasks.contrib.beat",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "billing",
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

DATABASES = {"default": database(os.environ.get("DATABASE_URL", ""), FOLDER)}

MAIL_FOLDER = FOLDER / "mails"
_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
if VERSION >= (6, 1):  # which deprecates the settings that older versions require
    MAILERS = {"default": {"BACKEND": _BACKEND, "OPTIONS": {"file_path": MAIL_FOLDER}}}
else:
    EMAIL_BACKEND, EMAIL_FILE_PATH = _BACKEND, MAIL_FOLDER
DEFAULT_FROM_EMAIL = "Billing <billing@example.com>"

# Without BROKER_URL, messages are files in a folder that all processes share.
CELERY_BROKER_URL = os.environ.get("BROKER_URL") or "durable-filesystem://"
if CELERY_BROKER_URL.startswith("durable-filesystem"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {"data_folder": str(FOLDER / "messages")}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# The default since Celery 5.7. RabbitMQ 4.3 refuses other queues of workers.
CELERY_CONTROL_QUEUE_EXCLUSIVE = CELERY_EVENT_QUEUE_EXCLUSIVE = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]

_prefix = QUEUE_PREFIX = os.environ.get("QUEUE_PREFIX", "")
CELERY_TASK_DEFAULT_QUEUE = f"{_prefix}billing"
CELERY_TASK_QUEUES = [
    Queue(name, routing_key=name) for name in (f"{_prefix}billing", f"{_prefix}reports")
]
CELERY_TASK_ROUTES = {"billing.tasks.build_usage_report": {"queue": f"{_prefix}reports"}}

# The atomic tasks take milliseconds, so that the single writer of SQLite is soon available again.
SILENCED_SYSTEM_CHECKS = ["durable_tasks.W011"]

# Three customers use the scheduler over HTTP: config.urls, billing.accounts.
CUSTOMERS = ("acme", "globex", "initech")
CUSTOMERS_PORT = int(os.environ.get("CUSTOMERS_PORT") or 8100)
DURABLE_TASKS = {
    # Without API_TASKS, clients of the HTTP API create callbacks and messages, and no other task.
    "HTTP_SIGNING_KEYS": ["only for the example: a random text of your own"],
    "HTTP_ALLOW": [f"127.0.0.1:{CUSTOMERS_PORT}"],  # the simulated servers are on this machine
    "QUEUE_ALLOW": [f"{_prefix}customer.{{tenant}}"],
    "NOTIFICATION_EMAIL_ALLOW": [f"*@{slug}.example" for slug in CUSTOMERS],
    **json.loads(os.environ.get("DURABLE_TASKS", "{}")),
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Billing platform",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "POSTPROCESSING_HOOKS": ["django_durable_tasks.contrib.api.webhooks.add_webhooks"],
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
