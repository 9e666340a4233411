"""Signatures of Standard Webhooks 1.0.0 (HMAC-SHA256): signing, verifying, and the secrets.

The signed text is ``id.timestamp.body``. A secret is ``whsec_`` and 24 to 64 bytes in base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping

from django_durable_tasks.exceptions import InvalidSignature, InvalidTarget

PREFIX = "whsec_"
TOLERANCE = 300.0
"""Seconds by which the timestamp of a message may differ from the receiver's clock."""
_SHORTEST, _LONGEST = 24, 64
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


def secret_bytes(secret: str) -> bytes:
    """Return the key of a ``whsec_...`` secret; raises InvalidTarget, without the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidTarget("The signing secret is not base64 after whsec_.") from None
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise InvalidTarget(
            f"The signing secret has {len(key)} bytes; {_SHORTEST} to {_LONGEST} are allowed."
        )
    return key


def derived_secret(master: str, *parts: object) -> str:
    """Return the secret of one endpoint, derived from a master key. It is the same in each process,
    and the master key cannot be computed from it.
    """
    text = "\x00".join(str(part) for part in parts)
    key = hmac.digest(master.encode(), f"durable-webhook\x00{text}".encode(), hashlib.sha256)
    return PREFIX + base64.b64encode(key).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature, ``v1,<base64>``."""
    text = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(secret_bytes(secret), text, hashlib.sha256)
    return "v1," + base64.b64encode(digest).decode()


def signed_headers(
    secrets: Iterable[str], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the three headers; during a rotation the last one contains several signatures."""
    signatures = [signature(secret, message_id, timestamp, body) for secret in secrets]
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Iterable[str],
    now: float,
    tolerance: float = TOLERANCE,
) -> str:
    """Check a received message and return its id; raises InvalidSignature.

    ``headers`` by names in lower case. ``now`` is in Unix seconds. One matching signature of any
    secret is enough.
    """
    message_id, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    given = headers.get("webhook-signature", "")
    if not message_id or not stamp or not given:
        raise InvalidSignature(
            "webhook-id, webhook-timestamp or webhook-signature is missing from the request."
        )
    if not _TIMESTAMP.fullmatch(stamp):
        raise InvalidSignature("webhook-timestamp is not a number of seconds.")
    if abs(int(stamp) - now) > tolerance:
        raise InvalidSignature(
            f"webhook-timestamp differs by more than {tolerance:g} s from this clock."
        )
    candidates = given.split(" ")[:20]
    for secret in secrets:
        expected = signature(secret, message_id, int(stamp), body).encode()
        for candidate in candidates:
            if hmac.compare_digest(expected, candidate.encode("utf-8", "backslashreplace")):
                return message_id
    raise InvalidSignature("No signature of the request matches a secret of this endpoint.")
