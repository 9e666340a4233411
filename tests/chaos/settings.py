"""Django's settings of every process of a chaos run: the test settings with the bodies and
failpoints of this suite, and what the drawn configuration of a campaign adds.
"""

import os
import sys
from urllib.parse import urlsplit

from tests.backends import broker_settings
from tests.chaos.configuration import CELERY, PSYCOPG2, VARIABLE, Configuration
from tests.chaos.plan import WITHOUT_SERVER
from tests.settings import *  # noqa: F403
from tests.settings import (
    BROKER,
    CELERY_BROKER_URL,
    DATABASES,
    DURABLE_TASKS,
    FOLDER,
    INSTALLED_APPS,
    RUN,
    VENDOR,
)

ROLE = os.environ.get("CHAOS_ROLE", RUN)
STAGE = "stage"
"""The role of the process that judges. No fault and no drawn setting concerns its connections."""

ISOLATION_LEVELS = ("read_uncommitted", "read_committed", "repeatable_read", "serializable")

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos.apps.ChaosConfig"]
CELERY_IMPORTS = ["tests.chaos.bodies"]

DURABLE_TASKS = {
    "HTTP_ALLOW": ["127.0.0.1"],
    "HTTP_PORTS": list(range(1_024, 65_536)),
    "HTTP_SIGNING_KEYS": ["chaos" * 8],
    "HTTP_TIMEOUT": 3,
    **DURABLE_TASKS,
}

if (second := os.environ.get("CHAOS_SECOND_BROKER")) and BROKER not in WITHOUT_SERVER:
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
        "application_name": f"chaos-{ROLE}",
    }


def _session(configuration: Configuration) -> str:
    """Return the statement that a session of MariaDB begins with."""
    values = dict[str, str]()
    if configuration.idle_timeout and ROLE != STAGE:
        values["wait_timeout"] = str(round(configuration.idle_timeout))
    if configuration.language:
        values["lc_messages"] = f"'{configuration.language}'"
    return ", ".join(f"SESSION {name} = {value}" for name, value in values.items())


if VARIABLE in os.environ:
    drawn = Configuration.of(os.environ[VARIABLE])
    if drawn.global_limit:
        DURABLE_TASKS["LIMITS"] = {"global": {"max_concurrency": drawn.global_limit}}
    globals().update({name: CELERY[name] for name in drawn.celery})
    options = DATABASES["default"].setdefault("OPTIONS", {})
    if VENDOR == "mariadb" and (statement := _session(drawn)):
        options["init_command"] = f"SET {statement}"
    if VENDOR == "postgresql" and ROLE == STAGE:
        options["options"] = "-c idle_session_timeout=0"
    if ROLE != STAGE:
        if drawn.connections in ("persistent", "checked"):
            DATABASES["default"]["CONN_MAX_AGE"] = None
            DATABASES["default"]["CONN_HEALTH_CHECKS"] = drawn.connections == "checked"
        if drawn.connections == "pool":
            options["pool"] = {"min_size": 0, "max_size": 10, "timeout": 10}
        if drawn.isolation and VENDOR == "mariadb":
            options["isolation_level"] = drawn.isolation.replace("_", " ")
        if drawn.isolation and VENDOR == "postgresql":
            # psycopg 3 numbers the levels of SQL from 1 on; psycopg2 begins with READ COMMITTED.
            level = ISOLATION_LEVELS.index(drawn.isolation) + 1
            options["isolation_level"] = level - (drawn.driver == PSYCOPG2)
        if drawn.driver == PSYCOPG2:
            # Django uses psycopg 3 whenever it can be imported.
            for module in [name for name in sys.modules if name.partition(".")[0] == "psycopg"]:
                del sys.modules[module]
            sys.modules["psycopg"] = None  # type: ignore[assignment]
