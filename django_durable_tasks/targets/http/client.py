"""Sends one request to an outside server, with the guard: the name is resolved once, every address
is vetted, and the connection goes to a vetted address.

Redirects are not followed, proxies of the environment are not used, and nothing is repeated. The
whole request has one deadline, and the head and the body of the answer have a limited size.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from urllib3.exceptions import HTTPError

from django_durable_tasks.rules.targets.addresses import Address
from django_durable_tasks.rules.targets.policy import AddressPolicy
from django_durable_tasks.rules.targets.urls import TargetUrl
from django_durable_tasks.targets.http.connections import ConnectionAttempt, default_tls, pinned
from django_durable_tasks.targets.http.deadline_socket import Deadline, DeadlineSocket
from django_durable_tasks.targets.http.exchange import CallFailed, CallFailure, Exchange, Stopwatch
from django_durable_tasks.targets.http.resolver import LookupFailed, Resolver

_PIECE = 8_192
_DETAIL_MAX = 100
_OWN_HEADERS = {"Accept-Encoding": "identity", "Connection": "close"}
_SEND_ERRORS = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_ANSWER_ERRORS = (OSError, http.client.HTTPException, HTTPError, ValueError)


class AddressRefused(Exception):
    """The guard refused an address; the text is for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRequest:
    """A request as it is sent. ``timeout``: seconds for everything, from the lookup of the name to
    the last byte that is read.
    """

    method: str
    url: TargetUrl
    headers: Mapping[str, str]
    body: bytes
    timeout: float


class HttpClient:
    """Sends requests of a tenant under the rules of a deployment."""

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        resolver: Resolver,
        connect_timeout: float,
        body_max: int,
        tenant_id: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy, self._resolver, self._tls = policy, resolver, tls
        self._tenant_id = tenant_id
        self._connect_timeout, self._body_max = connect_timeout, body_max

    def send(self, request: OutgoingRequest) -> Exchange:
        """Send the request once and return its answer; raises CallFailed and InvalidTarget."""
        self._policy.check_port(request.url)
        watch, deadline = Stopwatch(), Deadline(request.timeout)
        try:
            addresses = self.vetted(request.url, deadline)
        except (LookupFailed, AddressRefused, TimeoutError) as error:
            watch.step("dns")
            raise CallFailed(CallFailure.UNREACHABLE, str(error), watch.timings()) from None
        watch.step("dns")
        dial = ConnectionAttempt(
            addresses, request.url.port, deadline, self._connect_timeout, watch
        )
        try:
            return self._exchange(request, dial, watch)
        except _ANSWER_ERRORS as error:
            _raise(error, dial, watch)
        finally:
            dial.close()

    def vetted(self, url: TargetUrl, deadline: Deadline) -> tuple[Address, ...]:
        """Return the addresses of the host; raises LookupFailed, or AddressRefused if the rules
        refuse one of them.
        """
        verdicts = self.verdicts(url, deadline)
        for address, why in verdicts.items():
            if why is not None:
                raise AddressRefused(f"{url.host} resolved to {address}: {why}.")
        return tuple(verdicts)

    def verdicts(self, url: TargetUrl, deadline: Deadline) -> dict[Address, str | None]:
        """Return why each address of the host is refused, or None; raises LookupFailed."""
        addresses = (
            (url.literal,)
            if url.literal is not None
            else self._resolver.addresses(url.host, deadline.at, self._tenant_id)
        )
        return {address: self._policy.why_refused(url, address) for address in addresses}

    def _exchange(
        self, request: OutgoingRequest, dial: ConnectionAttempt, watch: Stopwatch
    ) -> Exchange:
        connection = pinned(request.url, dial, watch, self._tls or default_tls())
        connection.connect()
        sock: Any = connection.sock
        watch.skip()
        # A server may answer, for example 413, before it has read the whole body.
        with suppress(*_SEND_ERRORS):
            connection.request(
                request.method,
                request.url.path,
                body=request.body or None,
                headers={**_OWN_HEADERS, "Host": request.url.authority, **request.headers},
                preload_content=False,
                enforce_content_length=False,
            )
        # That of urllib3 logs the URL if it cannot parse a header, and decodes the body.
        response = http.client.HTTPConnection.getresponse(connection)
        watch.step("first_byte")
        body, truncated = self._body(response, sock)
        return Exchange(
            status=response.status,
            headers=tuple(response.headers.items()),
            body=body,
            truncated=truncated,
            timings=watch.timings(),
        )

    def _body(self, response: Any, sock: DeadlineSocket) -> tuple[bytes, bool]:
        """Return the first bytes of the body. The answer counts even if its body breaks off."""
        sock.allow(self._body_max + _PIECE)
        body = bytearray()
        try:
            while len(body) < self._body_max:
                piece = response.read1(min(_PIECE, self._body_max - len(body)))
                if not piece:
                    return bytes(body), False
                body += piece
            truncated = bool(response.read1(1))
        except _ANSWER_ERRORS:
            truncated = True
        return bytes(body), truncated


def _raise(error: Exception, dial: ConnectionAttempt, watch: Stopwatch) -> NoReturn:
    """Raise the failure of a request whose name was resolved and whose addresses were vetted."""
    if not dial.connected:
        failure = CallFailure.UNREACHABLE
    elif not dial.ready and isinstance(error, ssl.SSLError) and not isinstance(error, TimeoutError):
        failure = CallFailure.TLS
    elif isinstance(error, TimeoutError):
        failure = CallFailure.TIMEOUT
    else:
        failure = CallFailure.PROTOCOL
    raise CallFailed(failure, _detail(error), watch.timings()) from error


def _detail(error: Exception) -> str:
    """Return the text for the operator's log. The text of an HTTP error is omitted, because the
    server wrote it.
    """
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {ascii(str(error))[:_DETAIL_MAX]}"
    return type(error).__name__
