"""Django's settings of every process of a chaos run: those of the tests, with the bodies and failpoints of chaos."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS, RUN, VENDOR

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos.apps.ChaosConfig"]
CELERY_IMPORTS = ["tests.chaos.bodies"]

if VENDOR == "postgresql":
    # A process behind a proxy that swallows everything must find out by itself, as in production.
    DATABASES["default"]["OPTIONS"] = {
        "connect_timeout": 3, "tcp_user_timeout": 5_000, "keepalives_idle": 2, "keepalives_interval": 2,
        "keepalives_count": 2, "application_name": f"chaos-{os.environ.get('CHAOS_ROLE', RUN)}",
    }  # fmt: skip
