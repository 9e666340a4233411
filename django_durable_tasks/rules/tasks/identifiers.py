"""UUIDv7 (RFC 9562 §5.7): ids that sort by creation time, so that new rows are appended to the end
of every index.
"""

from __future__ import annotations

import uuid


def uuid7(unix_ms: int, randomness: bytes) -> uuid.UUID:
    """Return the UUIDv7 of this millisecond (UTC) and of 10 random bytes."""
    value = (unix_ms & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(randomness, "big")
    return uuid.UUID(int=value & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62)


def first_uuid7_of(unix_ms: int) -> uuid.UUID:
    """Return the smallest UUIDv7 of this millisecond: every task created before it has a smaller
    id.
    """
    return uuid7(unix_ms, bytes(10))
