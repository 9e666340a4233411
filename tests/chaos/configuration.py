"""The drawn configuration of a campaign: servers, pools, connections, settings and load, all from
one seed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from dataclasses import dataclass
from random import Random
from typing import Any, Self

VARIABLE = "CHAOS_CONFIGURATION"
"""The environment variable with the configuration for the processes of a campaign."""
PSYCOPG, PSYCOPG2 = "psycopg", "psycopg2"
POOLS = ("prefork", "prefork", "threads", "gevent", "solo")
SLOTS = {"prefork": (2, 2, 4), "threads": (4, 8), "gevent": (10,), "solo": (1,)}
"""How many tasks one worker of a pool runs at once."""
CELERY: dict[str, Any] = {
    "CELERY_TASK_ACKS_LATE": True,
    "CELERY_TASK_REJECT_ON_WORKER_LOST": True,
    "CELERY_TASK_TRACK_STARTED": True,
    "CELERY_TASK_IGNORE_RESULT": True,
    "CELERY_TASK_COMPRESSION": "gzip",
    "CELERY_WORKER_MAX_TASKS_PER_CHILD": 200,
    "CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS": True,
}
"""Settings of Celery that projects use for their other tasks."""
LANGUAGES = ("", "de_DE", "ru_RU", "ja_JP")
_PLACES = (
    ("postgresql", PSYCOPG, "prefork"),
    ("postgresql", PSYCOPG2, ""),
    ("mariadb", PSYCOPG, ""),
    ("sqlite", PSYCOPG, ""),
)
"""The database, driver and pool of successive campaigns of one seed, in an order that the seed
selects. The pool is drawn if it is empty.
"""
_BROKERS = ("rabbitmq", "redis")
# Two thousand rows of 0.1 s are more than the 1,000 that are published while no worker is known.
_BACKLOGS = (
    (2_500, 0.1, ()),
    (2_500, 0.1, ("limit", "removed")),
    (1_500, 0.01, ("removed",)),
    (150, 1.0, ("limit",)),
)
"""The tasks of the backlog, their duration in seconds, and what else must not delay them: a limit of
all names beside a queue without a worker, or tasks of a removed name. A fault of one of them would
hide those of an ordinary backlog, so one campaign of four has neither.
"""
_WORK = 150.0
"""The longest time, in seconds, that the workers need for the backlog; it is shortened to this."""


class NotAConfiguration(ValueError):
    """The text names no field of a configuration, or a value that it cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One campaign. The defaults are those of a run that draws nothing.

    ``idle_timeout``: after how many seconds the server ends an idle session; 0: never.
    ``global_limit`` and ``named_limit``: the largest number of running tasks of all names, and of
    one; 0: no limit. ``backlog`` tasks of ``backlog_seconds`` each are created ``alone`` seconds
    before the first worker, by single calls if they are ``published_first``. ``longest`` is the
    longest duration of a function (seconds). ``removed`` tasks have a name that no worker knows and
    the highest priority. ``unserved`` tasks are in a queue without a worker. ``short``: leases and
    timeouts are shortened, else the defaults are used.
    """

    database: str = "postgresql"
    broker: str = "redis"
    driver: str = PSYCOPG
    connections: str = "closed"
    isolation: str = ""
    idle_timeout: float = 0.0
    language: str = ""
    pool: str = "prefork"
    workers: int = 2
    slots: int = 2
    celery: tuple[str, ...] = ()
    global_limit: int = 0
    named_limit: int = 0
    backlog: int = 0
    backlog_seconds: float = 0.0
    published_first: bool = False
    alone: float = 0.0
    longest: float = 90.0
    removed: int = 0
    unserved: int = 0
    failing_batches: bool = False
    overridden_call: bool = False
    short: bool = True

    @property
    def capacity(self) -> int:
        """Return how many tasks all workers run at once."""
        return self.workers * self.slots

    def as_text(self) -> str:
        """Return it as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse the output of ``as_text``."""
        values = json.loads(text)
        return cls(**{**values, "celery": tuple(values["celery"])})

    def in_words(self) -> str:
        """Return what differs from the defaults, in the form that ``but`` reads."""
        default = type(self)()
        pairs = [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return ",".join(
            f"{name}={_shown(value)}"
            for name, value in pairs
            if name in ("database", "broker", "pool") or value != getattr(default, name)
        )

    def but(self, text: str) -> Self:
        """Return it with the values of a text such as ``pool=threads,slots=8``."""
        changes = dict[str, Any]()
        for word in filter(None, text.split(",")):
            name, separator, value = word.partition("=")
            known = [field.name for field in dataclasses.fields(self)]
            if name not in known or not separator:
                raise NotAConfiguration(f"{word!r} is not NAME=VALUE; names: {', '.join(known)}.")
            changes[name] = _read(name, value, getattr(self, name))
        return dataclasses.replace(self, **changes)


def _shown(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)


def _read(name: str, value: str, default: Any) -> Any:
    if isinstance(default, bool):
        if value not in ("True", "False"):
            raise NotAConfiguration(f"{name}={value} is neither True nor False.")
        return value == "True"
    if isinstance(default, tuple):
        return tuple(filter(None, value.split("+")))
    try:
        return type(default)(value)
    except ValueError:
        raise NotAConfiguration(f"{name}={value} is not a {type(default).__name__}.") from None


def seeds(seed: str, number: int) -> list[str]:
    """Return the seeds of this many campaigns. One of them alone draws the same configuration."""
    return [seed] if number == 1 else [f"{seed}-{turn}" for turn in range(1, number + 1)]


def drawn(seed: str, seconds: float, *, private: bool = True) -> Configuration:
    """Draw a configuration. Four successive campaigns of one seed have two PostgreSQL, a MariaDB
    and an SQLite, both brokers and every kind of task.

    A campaign of less than five minutes has shortened leases, functions and backlogs. Without
    ``private`` servers the language of the server is not drawn.
    """
    base, separator, turn = seed.rpartition("-")
    base, number = (base, int(turn)) if separator and turn.isdigit() else (seed, 0)
    random, short = Random(f"{seed}/configuration"), seconds < 300

    def in_turn(name: str, choices: tuple[Any, ...]) -> Any:
        order = list(choices)
        Random(f"{base}/{name}").shuffle(order)
        return order[number % len(order)]

    database, driver, pool = in_turn("database", _PLACES)
    server, tied = database != "sqlite", bool(pool)
    pool = pool or random.choice(POOLS)
    driver = driver if pool != "gevent" else PSYCOPG  # psycopg2 blocks all greenlets
    broker = in_turn("broker", _BROKERS) if server else random.choice(("filesystem", "redis"))
    slots = random.choice(SLOTS[pool])
    workers = random.choice((1, 2)) if slots > 1 else 3
    capacity, scale = workers * slots, seconds / 600 if short else 1.0
    backlog, each, obstacles = in_turn("backlog", _BACKLOGS)
    return Configuration(
        database=database,
        broker=broker,
        driver=driver if importlib.util.find_spec(driver) else PSYCOPG,
        connections=_connections(random, database, driver, pool),
        isolation=random.choice(("", "repeatable_read", "serializable")) if server else "",
        idle_timeout=random.choice((3.0, 20.0) if tied else (3.0, 20.0, 0.0)) if server else 0.0,
        language=random.choice(LANGUAGES) if server and private else "",
        pool=pool,
        workers=workers,
        slots=slots,
        celery=tuple(sorted(random.sample(sorted(CELERY), random.randint(0, 4)))),
        global_limit=2 * capacity if "limit" in obstacles else 0,
        named_limit=random.choice((0, max(1, capacity // 2))),
        backlog=int(min(backlog * scale, _WORK * scale * capacity / each)),
        backlog_seconds=each,
        published_first=random.random() < 0.5,
        alone=random.choice((0.0, 10.0, 40.0)) * scale,
        longest=max(3.0, 90.0 * scale),
        removed=int(1_500 * scale) if "removed" in obstacles else 0,
        unserved=int(random.choice((300, 1_200)) * scale),
        failing_batches=random.random() < 0.75,
        overridden_call=random.random() < 0.25,
        short=short,
    )


def _connections(random: Random, database: str, driver: str, pool: str) -> str:
    """Draw how long the project keeps its connections. ``pool`` is that of psycopg 3."""
    drawn = random.choice(("closed", "persistent", "checked", "pool"))
    can_pool = database == "postgresql" and driver == PSYCOPG and pool != "gevent"
    if drawn == "pool" and not (can_pool and importlib.util.find_spec("psycopg_pool")):
        return "closed"
    return drawn
