"""The trace in which a task was created, stored among the options of its row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TRACEPARENT = "traceparent"
"""The option with the context of the creation (W3C Trace Context)."""
LINKS = "trace_links"
"""The option with the contexts of the upstreams."""
LINKS_MAX = 20


def with_trace(options: str | None, traceparent: str, upstreams: Sequence[str] = ()) -> str:
    """Return options (JSON text) with the trace of the creation."""
    found = json.loads(options) if options else {}
    found[TRACEPARENT] = traceparent
    if upstreams:
        found[LINKS] = list(upstreams)
    return json.dumps(found)


def traceparents(options: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """Return the contexts in the options of tasks, at most LINKS_MAX."""
    found = [text for one in options if one and isinstance(text := one.get(TRACEPARENT), str)]
    return found[:LINKS_MAX]
