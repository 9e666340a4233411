"""A socket for ``http.client`` whose operations together end at one deadline, and whose answer has
a limited size.

The timeout of a Python socket starts again with each received byte. A server that sends one byte
per second would occupy a worker indefinitely.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class AnswerTooLarge(OSError):
    """The server sent more bytes than the answer may have."""


class Deadline:
    """A point of ``time.monotonic()`` at which a request ends."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    def left(self, longest: float | None = None) -> float:
        """Return the seconds left, at most ``longest``; raises TimeoutError at the end."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError("The deadline of the request has passed.")
        return left if longest is None else min(left, longest)


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: Deadline, allowed: int) -> None:
        super().__init__()
        self._sock, self._deadline, self.allowed = sock, deadline, allowed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.allowed <= 0:
            raise AnswerTooLarge("The answer is larger than allowed.")
        self._sock.settimeout(self._deadline.left())
        received = self._sock.recv_into(buffer)
        self.allowed -= received
        return received


class DeadlineSocket:
    """Wraps a connected socket. ``allowed``: bytes that may still be received."""

    def __init__(self, sock: socket.socket, deadline: Deadline, allowed: int) -> None:
        self._sock, self._deadline = sock, deadline
        self._reader = _Reader(sock, deadline, allowed)

    def allow(self, size: int) -> None:
        """Set how many more bytes may be received."""
        self._reader.allowed = size

    def sendall(self, data: Any) -> None:
        """Send everything before the deadline. TLS sockets would restart their timeout for each
        part.
        """
        rest = memoryview(data).cast("B")
        while rest:
            self._sock.settimeout(self._deadline.left())
            rest = rest[self._sock.send(rest) :]

    def makefile(self, mode: str = "rb", *_: Any) -> io.BufferedReader:
        """Return the buffered reader of the answer."""
        return io.BufferedReader(self._reader)

    def settimeout(self, _: float | None) -> None:
        """Do nothing: each operation sets the time that is left."""

    def close(self) -> None:
        """Do nothing: the client closes the socket after it has read the body, http.client before
        that.
        """
