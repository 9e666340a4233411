"""The result of one HTTP request: the answer or the failure, with its timings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum


class CallFailure(StrEnum):
    """Why a request has no answer. UNREACHABLE is the same for a refused address, an unknown name
    and a closed port, so that requests cannot be used to scan the network.
    """

    UNREACHABLE = "UNREACHABLE"
    TLS = "TLS"
    TIMEOUT = "TIMEOUT"
    PROTOCOL = "PROTOCOL"


_TEXTS = {
    CallFailure.UNREACHABLE: "The endpoint could not be reached.",
    CallFailure.TLS: "The TLS connection to the endpoint could not be established.",
    CallFailure.TIMEOUT: "The endpoint did not answer in time.",
    CallFailure.PROTOCOL: "The connection was lost, or the answer was not valid HTTP.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Durations in seconds; None if the request did not get that far. ``first_byte`` is measured
    from the sent request to the end of the answer's headers.
    """

    dns: float | None = None
    connect: float | None = None
    tls: float | None = None
    first_byte: float | None = None
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An answer. ``body`` contains its first bytes, not decompressed; ``truncated`` if there were
    more.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    truncated: bool
    timings: Timings


class CallFailed(Exception):
    """A request has no answer. The text may be shown to a tenant; ``detail`` is for the operator
    only, because it shows what the deployment's network looks like.
    """

    def __init__(self, failure: CallFailure, detail: str, timings: Timings) -> None:
        super().__init__(_TEXTS[failure])
        self.failure, self.detail, self.timings = failure, detail, timings


class Stopwatch:
    """Measures the steps of a request one after another."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._steps: dict[str, float] = {}

    def step(self, name: str) -> None:
        """Record the time since the last step under this name."""
        now = time.monotonic()
        self._steps[name] = now - self._last
        self._last = now

    def skip(self) -> None:
        """Begin the next step now."""
        self._last = time.monotonic()

    def timings(self) -> Timings:
        """Return the steps so far."""
        return Timings(**self._steps, total=time.monotonic() - self._began)
