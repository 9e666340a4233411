"""Connections of urllib3 that are pinned to vetted addresses.

The host name is kept for the Host header, for SNI and for the check of the certificate. It is not
resolved again.
"""

from __future__ import annotations

import functools
import http.client
import itertools
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast

from urllib3.connection import HTTPConnection, HTTPSConnection

from django_durable_tasks.rules.targets.addresses import Address
from django_durable_tasks.rules.targets.urls import TargetUrl
from django_durable_tasks.targets.http.deadline_socket import Deadline, DeadlineSocket
from django_durable_tasks.targets.http.exchange import Stopwatch

HEAD_MAX_BYTES = 65_536
_TRIED = 3


class ConnectionAttempt:
    """Connects to the first vetted address that accepts. It owns the socket.

    ``connected``: a server accepted. ``ready``: the TLS handshake, if there is one, is complete.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        port: int,
        deadline: Deadline,
        patience: float,
        watch: Stopwatch,
    ) -> None:
        self._addresses, self._port = _mixed(addresses)[:_TRIED], port
        self._deadline, self._patience, self._watch = deadline, patience, watch
        self._sock: socket.socket | None = None
        self.connected = self.ready = False

    def connect(self) -> socket.socket:
        """Return a connected socket; raises OSError. ``patience`` is the time for all addresses."""
        self._watch.skip()
        error: OSError = OSError("no address")
        limit = Deadline(self._deadline.left(self._patience))
        for number, address in enumerate(self._addresses):
            share = limit.left() / (len(self._addresses) - number)
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            sock: socket.socket | None = None
            try:
                # Without support for IPv6 not even the socket can be created.
                sock = socket.socket(family, socket.SOCK_STREAM)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(share)
                sock.connect((str(address), self._port))
            except OSError as failed:
                if sock is not None:
                    sock.close()
                error = failed
                continue
            self._sock, self.connected = sock, True
            self._watch.step("connect")
            # The TLS handshake has this time in total.
            sock.settimeout(self._deadline.left())
            return sock
        raise error

    def wrapped(self, sock: socket.socket) -> DeadlineSocket:
        """Return the socket for http.client, which reads the head of the answer first."""
        self._sock, self.ready = sock, True
        return DeadlineSocket(sock, self._deadline, HEAD_MAX_BYTES)

    def close(self) -> None:
        """Close the socket."""
        if self._sock is not None:
            self._sock.close()


def _mixed(addresses: Sequence[Address]) -> list[Address]:
    """Return the addresses with both families in turn, in the order of each family."""
    first = addresses[0].version if addresses else 4
    families = (
        [address for address in addresses if (address.version == first) is same]
        for same in (True, False)
    )
    return [one for pair in itertools.zip_longest(*families) for one in pair if one is not None]


class _Answer(http.client.HTTPResponse):
    """An answer without the interim answers before it, of which http.client skips only 100."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if status == http.client.SWITCHING_PROTOCOLS:
                raise http.client.HTTPException("101 Switching Protocols was not requested.")
            if not http.client.CONTINUE < status < http.client.OK:
                return version, status, reason
            http.client.parse_headers(self.fp)


class _Plain(HTTPConnection):
    response_class = _Answer
    dial: ConnectionAttempt

    def _new_conn(self) -> socket.socket:
        return self.dial.connect()

    def connect(self) -> None:
        super().connect()
        self.sock = cast("Any", self.dial.wrapped(self.sock))


class _Encrypted(HTTPSConnection):
    response_class = _Answer
    dial: ConnectionAttempt
    watch: Stopwatch

    def _new_conn(self) -> socket.socket:
        return self.dial.connect()

    def connect(self) -> None:
        super().connect()
        self.watch.step("tls")
        self.sock = cast("Any", self.dial.wrapped(cast("Any", self.sock)))


@functools.cache
def default_tls() -> ssl.SSLContext:
    """Return the context with the certificates of the system. Loading them takes milliseconds."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def pinned(
    url: TargetUrl, dial: ConnectionAttempt, watch: Stopwatch, tls: ssl.SSLContext
) -> HTTPConnection | HTTPSConnection:
    """Return an unconnected connection for this URL."""
    if url.scheme == "http":
        plain = _Plain(url.host, url.port)
        plain.dial = dial
        return plain
    encrypted = _Encrypted(url.host, url.port, ssl_context=tls, cert_reqs=ssl.CERT_REQUIRED)
    encrypted.dial, encrypted.watch = dial, watch
    return encrypted
