"""Settings of django-ox's project. The environment variable BENCHMARK_DATABASE contains the
address.
"""

import os
from urllib.parse import unquote, urlsplit

_parts = urlsplit(os.environ["BENCHMARK_DATABASE"])

SECRET_KEY = "only for benchmarks"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_ox",
    "benchmarks.peers.ox",
]
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
TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend"}}
