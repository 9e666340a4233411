"""Django's settings of every process of a chaos run: the test settings with the bodies and
failpoints of this suite.
"""

import os
from urllib.parse import urlsplit

from tests.backends import broker_settings
from tests.settings import *  # noqa: F403
from tests.settings import (
    CELERY_BROKER_URL,
    DATABASES,
    DURABLE_TASKS,
    FOLDER,
    INSTALLED_APPS,
    RUN,
    VENDOR,
)

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos.apps.ChaosConfig"]
CELERY_IMPORTS = ["tests.chaos.bodies"]

DURABLE_TASKS = {
    "METRICS": True,
    "NOTIFICATIONS": True,
    "HTTP_ALLOW": ["127.0.0.1"],
    "HTTP_PORTS": list(range(1_024, 65_536)),
    "HTTP_SIGNING_KEYS": ["chaos" * 8],
    "HTTP_TIMEOUT": 3,
    "HTTP_BREAKER_PAUSE": 1,
    **DURABLE_TASKS,
}

if second := os.environ.get("CHAOS_SECOND_BROKER"):
    # The same server under a second address, so that one of the two can be cut.
    there = urlsplit(CELERY_BROKER_URL)._replace(netloc=urlsplit(second).netloc)
    CELERY_BROKER_URL = f"{CELERY_BROKER_URL};{there.geturl()}"

if index := os.environ.get("CHAOS_INDEX"):
    place = urlsplit(broker_settings("redis", FOLDER)[0])._replace(netloc=urlsplit(index).netloc)
    DURABLE_TASKS = {**DURABLE_TASKS, "REDIS_URL": place.geturl()}

if VENDOR == "postgresql":
    # A process behind a proxy that discards everything must detect it by itself, as in production.
    DATABASES["default"]["OPTIONS"] = {
        "connect_timeout": 3,
        "tcp_user_timeout": 5_000,
        "keepalives_idle": 2,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "application_name": f"chaos-{os.environ.get('CHAOS_ROLE', RUN)}",
    }
