"""Decodes jsonb values in PostgreSQL's binary format in a quarter of psycopg's time."""

from __future__ import annotations

import functools
import json
from typing import Any

_JSONB, _BINARY = 3802, 1
"""The object id of the type, and psycopg's number of the format."""
_VERSION = 1
_decode = json.JSONDecoder().raw_decode


def read_jsonb_quickly(driver: Any) -> None:
    """Use the quick decoder for the results of this connection of psycopg 3 in the binary format.
    Other drivers, and results in text, are not changed.
    """
    adapters = getattr(driver, "adapters", None)
    if adapters is not None:
        found = adapters.get_loader(_JSONB, _BINARY)
        adapters.register_loader(_JSONB, _quick(found))


@functools.cache
def _quick(slow: Any) -> Any:
    def load(self: Any, data: Any) -> Any:
        """Decode without the search for the encoding and for white space around the value, which
        PostgreSQL never sends.
        """
        if data[0] != _VERSION:
            return slow.load(self, data)
        return _decode(str(data[1:], "utf-8"))[0]

    return type("QuickJsonbLoader", (slow,), {"load": load})
