"""The format of API keys: ``ddt_<live|test>_<id>_<secret><checksum>``.

The prefix lets secret scanners find a key. The checksum refuses a mistyped key without a query. The
database stores the id and the SHA-256 of the whole key, which is enough for 256 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from dataclasses import dataclass
from enum import StrEnum

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


class KeyMode(StrEnum):
    """Part of the prefix of a key. It distinguishes the keys of a test system and has no effect."""

    LIVE = "live"
    TEST = "test"


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
