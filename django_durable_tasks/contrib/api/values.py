"""API keys, quotas, request rates and filters of tenants as values."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django_durable_tasks.choices import KeyMode, Status
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits.scopes import rate_of
from django_durable_tasks.models.tasks import first_uuid7_of

# The format of API keys: ``ddt_<live|test>_<id>_<secret><checksum>``.
#
# The prefix lets secret scanners find a key. The checksum refuses a mistyped key without a query.
# The database stores the id and the SHA-256 of the whole key, which is enough for 256 random bits.


ID_LENGTH, SECRET_LENGTH, _CHECKSUM_LENGTH = 8, 43, 6
ID_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEY = re.compile(
    rf"(?P<body>ddt_(?:live|test)_(?P<id>[0-9a-z]{{{ID_LENGTH}}})_[A-Za-z0-9_-]{{{SECRET_LENGTH}}})"
    rf"(?P<checksum>[0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)
LIVE_KEYS_MAX = 2
"""How many keys of one name and tenant may be valid at the same time: the old and the new one of a
rotation.
"""


class ApiScope(StrEnum):
    """What an API key may do."""

    READ = "read"
    CREATE = "create"
    OPERATE = "operate"
    FORCE = "force"
    SCHEDULES = "schedules"
    QUEUES = "queues"
    METRICS = "metrics"
    NOTIFICATIONS = "notifications"
    SECRETS = "secrets"


SCOPE_HELP = {
    ApiScope.READ: "read tasks, schedules and their history",
    ApiScope.CREATE: "create tasks and workflows",
    ApiScope.OPERATE: "edit, cancel, retry, replay and reschedule tasks",
    ApiScope.FORCE: "force-complete and force-run tasks",
    ApiScope.SCHEDULES: "change recurring tasks and calendars",
    ApiScope.QUEUES: "read and pause queues and read the state of nodes, which all tenants share",
    ApiScope.METRICS: "read the metrics, which all tenants share",
    ApiScope.NOTIFICATIONS: "change and test notification settings",
    ApiScope.SECRETS: "read arguments and results unmasked, and signing secrets",
}


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A well-formed key: its id, and the digest to compare with the stored one."""

    identifier: str
    digest: str

    def has_digest(self, stored: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.digest, stored)


def composed(mode: KeyMode, identifier: str, secret: str) -> str:
    """Return the key of these parts, with its checksum."""
    body = f"ddt_{mode}_{identifier}_{secret}"
    return body + _checksum(body)


def presented(text: str) -> PresentedKey | None:
    """Read a key; None if it is not well formed or its checksum is wrong."""
    found = _KEY.fullmatch(text)
    if found is None or _checksum(found["body"]) != found["checksum"]:
        return None
    return PresentedKey(found["id"], digest_of(text))


def digest_of(key: str) -> str:
    """Return the SHA-256 of a key as hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


# The rate is a GCRA (generic cell rate algorithm, ITU-T I.371): one time per tenant, at which its
# whole window would be free again. A request moves it by the interval of one request.


NUMBERS = ("open_tasks", "recurring_tasks", "runs_per_day", "calendars", "payload_bytes")
REQUESTS = "requests"
_MOST = 1_000_000_000
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A number of requests in a window of seconds; a whole window may arrive at once."""

    number: int
    seconds: int

    def __str__(self) -> str:
        units = {1: "s", 60: "m", 3_600: "h", 86_400: "d"}
        return f"{self.number}/{units[self.seconds]}"

    @property
    def interval(self) -> int:
        """Microseconds of the window that one request takes, at least 1."""
        return max(1, self.seconds * _MICROSECONDS // self.number)

    @property
    def window(self) -> int:
        """The window in microseconds."""
        return self.interval * self.number

    def taken_by(self, requests: int) -> int:
        """Microseconds of the window that these requests take together, at most all of it."""
        return self.interval * min(requests, self.number)

    def decision(self, admitted: bool, ahead: int, requests: int = 1) -> RateDecision:
        """Return what is left if the window is free ``ahead`` microseconds from now."""
        ahead = min(max(ahead, 0), self.window)
        left = max(0, (self.window - ahead) // self.interval)
        wait = 0 if admitted else max(0, ahead + self.taken_by(requests) - self.window)
        return RateDecision(self, admitted, left, _seconds(ahead), _seconds(wait))


@dataclass(frozen=True, slots=True)
class RateDecision:
    """Whether a request is admitted.

    ``left``: further requests that would be admitted now. ``reset``: seconds until the whole
    window is free. ``retry_after``: seconds until this request is admitted; 0 if it is.
    """

    rate: RequestRate
    admitted: bool
    left: int
    reset: int
    retry_after: int


def _seconds(microseconds: int) -> int:
    return math.ceil(microseconds / _MICROSECONDS)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one tenant; None means without limit."""

    open_tasks: int | None = None
    recurring_tasks: int | None = None
    runs_per_day: int | None = None
    calendars: int | None = None
    payload_bytes: int | None = None
    requests: RequestRate | None = None


def quotas_of(given: Mapping[str, Any]) -> Quotas:
    """Return the quotas of a mapping like ``{"open_tasks": 10_000, "requests": "600/m"}``. Raises
    InvalidOption.
    """
    for name in given:
        if name not in (*NUMBERS, REQUESTS):
            raise InvalidOption(f"{name!r} is no quota. {did_you_mean(name, (*NUMBERS, REQUESTS))}")
    numbers = {name: number_of(name, given.get(name)) for name in NUMBERS}
    return Quotas(**numbers, requests=request_rate_of(given.get(REQUESTS)))


def number_of(name: str, value: object) -> int | None:
    """Return a checked quota; raises InvalidOption."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise InvalidOption.of(name, value, f"give a whole number from 0 to {_MOST:,}, or None.")
    return value


def request_rate_of(text: object) -> RequestRate | None:
    """Return the rate of a text like ``"600/m"``; None for None or "". Raises InvalidOption."""
    if text is None or text == "":
        return None
    rate = rate_of(REQUESTS, text)
    if rate.number > rate.seconds * _MICROSECONDS:
        raise InvalidOption.of(REQUESTS, text, "give at most a million requests a second.")
    return RequestRate(rate.number, int(rate.seconds))


# The filters of lists of tasks and of bulk operations. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks: in this status, queue and of this name, created from ``since`` until before
    ``before``. None matches all.
    """

    status: Status | None = None
    queue: str | None = None
    name: str | None = None
    since: datetime | None = None
    before: datetime | None = None

    @property
    def first_id(self) -> uuid.UUID | None:
        """The least id of the period; ids sort by creation time in milliseconds."""
        return None if self.since is None else _id_at(self.since)

    @property
    def end_id(self) -> uuid.UUID | None:
        """The least id after the period."""
        return None if self.before is None else _id_at(self.before)

    def matches(self, status: str, queue: str, name: str) -> bool:
        """Return whether a task with an id of the period matches."""
        return (
            self.status in (None, status)
            and self.queue in (None, queue)
            and self.name in (None, name)
        )

    def stored(self) -> dict[str, Any]:
        """Return the filters that are given as JSON values."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else str(value)
            for name, value in asdict(self).items()
            if value is not None
        }


def task_filter(stored: Mapping[str, Any]) -> TaskFilter:
    """Return the filter of ``TaskFilter.stored``."""
    found = dict(stored)
    for name in ("since", "before"):
        if name in found:
            found[name] = datetime.fromisoformat(found[name])
    if "status" in found:
        found["status"] = Status(found["status"])
    return TaskFilter(**found)


def _id_at(at: datetime) -> uuid.UUID:
    return first_uuid7_of(max(0, int(at.timestamp() * 1_000)))
