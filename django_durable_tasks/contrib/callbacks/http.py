"""The only HTTP client of the package. Every request to an outside server passes its guard. And
the secrets with which requests are signed.
"""

from __future__ import annotations

import functools
import http.client
import io
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, cast

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from django_durable_tasks import __version__, conf, process_state
from django_durable_tasks.audit import acting, recorded
from django_durable_tasks.targets import http_request
from django_durable_tasks.targets.addresses import (
    Address,
    AddressPolicy,
    TargetUrl,
    address_policy,
    parsed_address,
    parsed_url,
)
from django_durable_tasks.task_values import Run

# Resolves host names in threads, because ``getaddrinfo`` cannot be interrupted.
#
# A lookup that exceeds its deadline continues in its thread. Requests for the same name share one
# lookup. The number of lookups that exceeded their deadline is limited for each tenant, so that
# names whose name server does not answer do not block the requests of other tenants.


OVERDUE_MAX, OVERDUE_PER_TENANT = 32, 8
REMEMBERED = 30.0
_REMEMBERED_MAX = 1_000
Lookup = Callable[[str], list[str]]


class LookupFailed(Exception):
    """The host name could not be resolved in time, or to an address that the guard refuses. The
    text is for the operator.
    """


def _system_lookup(host: str) -> list[str]:
    infos: list[Any] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [sockaddr[0] for *_, sockaddr in infos]


@dataclass(eq=False, slots=True)
class _Running:
    """A lookup in its thread. ``tenant_id`` started it; ``overdue``: a request has given up."""

    tenant_id: int
    overdue: bool = False
    future: Future[list[str]] = field(default_factory=Future)


class Resolver:
    """Looks up host names; one per process.

    A tenant with OVERDUE_PER_TENANT overdue lookups cannot start another one. If all tenants
    together have OVERDUE_MAX, a tenant that has one cannot start another one. A name whose lookup
    exceeded the deadline of a tenant fails at once for this tenant for REMEMBERED seconds, unless
    its lookup succeeds meanwhile.
    """

    def __init__(self, lookup: Lookup = _system_lookup) -> None:
        self._lookup = lookup
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._slow: dict[tuple[int, str], float] = {}

    def addresses(self, host: str, deadline: float, tenant_id: int) -> tuple[Address, ...]:
        """Return the addresses of a host; raises LookupFailed.

        ``deadline`` is of ``time.monotonic()``.
        """
        running = self._started(host, tenant_id)
        try:
            texts = running.future.result(timeout=max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            self._give_up(host, tenant_id, running)
            raise LookupFailed(f"{host} was not resolved in time.") from None
        except (OSError, UnicodeError) as error:
            raise LookupFailed(f"{host} was not resolved: {error}.") from None
        except RuntimeError as error:
            raise LookupFailed(f"{host} was not resolved: no thread ({error}).") from None
        parsed = dict.fromkeys(parsed_address(text) for text in texts)
        addresses = tuple(address for address in parsed if address is not None)
        if not addresses or len(addresses) < len(parsed):
            raise LookupFailed(f"{host} resolved to {texts}, which are not usable addresses.")
        return addresses

    def _started(self, host: str, tenant_id: int) -> _Running:
        with self._lock:
            if self._slow.get((tenant_id, host), 0.0) > time.monotonic():
                raise LookupFailed(f"{host} was not resolved in time by an earlier request.")
            running = self._running.get(host)
            if running is not None:
                return running
            overdue = [lookup.tenant_id for lookup in self._running.values() if lookup.overdue]
            allowed = OVERDUE_PER_TENANT if len(overdue) < OVERDUE_MAX else 1
            if overdue.count(tenant_id) >= allowed:
                raise LookupFailed(f"{host} was not resolved: too many lookups are overdue.")
            running = self._running[host] = _Running(tenant_id)
        thread = threading.Thread(
            target=self._run, args=(host, running), name="durable-lookup", daemon=True
        )
        try:
            thread.start()
        except BaseException as error:
            self._finish(host, running)
            running.future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        return running

    def _give_up(self, host: str, tenant_id: int, running: _Running) -> None:
        now = time.monotonic()
        with self._lock:
            if self._running.get(host) is not running:
                return
            running.overdue = True
            if len(self._slow) >= _REMEMBERED_MAX:
                self._slow = {key: until for key, until in self._slow.items() if until > now}
            if len(self._slow) < _REMEMBERED_MAX:
                self._slow[tenant_id, host] = now + REMEMBERED

    def _finish(self, host: str, running: _Running, *, succeeded: bool = False) -> None:
        with self._lock:
            del self._running[host]
            if succeeded and running.overdue:
                for key in [key for key in self._slow if key[1] == host]:
                    del self._slow[key]

    def _run(self, host: str, running: _Running) -> None:
        texts, error = list[str](), None
        try:
            texts = self._lookup(host)
        except BaseException as failed:  # noqa: BLE001 - it is raised in the waiting threads
            error = failed
        self._finish(host, running, succeeded=error is None)
        if error is None:
            running.future.set_result(texts)
        else:
            running.future.set_exception(error)


# A socket for ``http.client`` whose operations together end at one deadline, and whose answer has
# a limited size.
#
# The timeout of a Python socket starts again with each received byte. A server that sends one byte
# per second would occupy a worker indefinitely.


class AnswerTooLarge(OSError):
    """The server sent more bytes than the answer may have."""


class Deadline:
    """A point of ``time.monotonic()`` at which a request ends."""

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    def left(self, longest: float | None = None) -> float:
        """Return the seconds left, at most ``longest``; raises TimeoutError at the end."""
        remaining = self.at - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("The deadline of the request has passed.")
        return remaining if longest is None else min(remaining, longest)


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
        remaining = memoryview(data).cast("B")
        while remaining:
            self._sock.settimeout(self._deadline.left())
            remaining = remaining[self._sock.send(remaining) :]

    def makefile(self, mode: str = "rb", *_: Any) -> io.BufferedReader:
        """Return the buffered reader of the answer."""
        return io.BufferedReader(self._reader)

    def settimeout(self, _: float | None) -> None:
        """Do nothing: each operation sets the time that is left."""

    def close(self) -> None:
        """Do nothing: the client closes the socket after it has read the body, http.client before
        that.
        """


# The result of one HTTP request: the answer or the failure, with its timings.


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


class Timings:
    """Measures the steps of a request one after another, in seconds; None if the request did not
    get that far. ``first_byte`` is measured from the sent request to the end of the answer's
    headers.
    """

    def __init__(self) -> None:
        self.dns: float | None = None
        self.connect: float | None = None
        self.tls: float | None = None
        self.first_byte: float | None = None
        self.total = 0.0
        self._began = self._last = time.monotonic()

    def step(self, name: str) -> None:
        """Record the time since the last step under this name."""
        last, self._last = self._last, time.monotonic()
        setattr(self, name, self._last - last)

    def skip(self) -> None:
        """Begin the next step now."""
        self._last = time.monotonic()

    def end(self) -> Timings:
        """Record the total duration."""
        self.total = time.monotonic() - self._began
        return self


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


# Connections of urllib3 that are pinned to vetted addresses.
#
# The host name is kept for the Host header, for SNI and for the check of the certificate. It is
# not resolved again.


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
        timings: Timings,
    ) -> None:
        # Both families in turn, in the order of each family.
        first = addresses[0].version if addresses else 4
        families = (
            [address for address in addresses if (address.version == first) is same]
            for same in (True, False)
        )
        mixed = itertools.chain.from_iterable(itertools.zip_longest(*families))
        self._addresses, self._port = [ip for ip in mixed if ip is not None][:_TRIED], port
        self._deadline, self._patience, self.timings = deadline, patience, timings
        self._sock: socket.socket | None = None
        self.connected = self.ready = False

    def connect(self) -> socket.socket:
        """Return a connected socket; raises OSError. ``patience`` is the time for all addresses."""
        self.timings.skip()
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
            self.timings.step("connect")
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

    def _new_conn(self) -> socket.socket:
        return self.dial.connect()

    def connect(self) -> None:
        super().connect()
        self.dial.timings.step("tls")
        self.sock = cast("Any", self.dial.wrapped(cast("Any", self.sock)))


@functools.cache
def default_tls() -> ssl.SSLContext:
    """Return the context with the certificates of the system. Loading them takes milliseconds."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


# Sends one request to an outside server, with the guard: the name is resolved once, every address
# is vetted, and the connection goes to a vetted address.
#
# Redirects are not followed, proxies of the environment are not used, and nothing is repeated. The
# whole request has one deadline, and the head and the body of the answer have a limited size.


_PIECE = 8_192
_DETAIL_MAX = 100
_OWN_HEADERS = {"Accept-Encoding": "identity", "Connection": "close"}
_SEND_ERRORS = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_ANSWER_ERRORS = (OSError, http.client.HTTPException, HTTPError, ValueError)


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

    def send(self, request: http_request.HttpRequest) -> Exchange:
        """Send the request once, with its headers as they are, and return its answer; raises
        CallFailed and InvalidTarget. Its timeout is for everything, from the lookup of the name to
        the last byte that is read.
        """
        self._policy.check_port(request.url)
        timings, deadline = Timings(), Deadline(request.timeout)
        try:
            addresses = self.vetted(request.url, deadline)
        except (LookupFailed, TimeoutError) as error:
            timings.step("dns")
            raise CallFailed(CallFailure.UNREACHABLE, str(error), timings.end()) from None
        timings.step("dns")
        dial = ConnectionAttempt(
            addresses, request.url.port, deadline, self._connect_timeout, timings
        )
        try:
            return self._exchange(request, dial)
        except _ANSWER_ERRORS as error:
            failure = CallFailure.PROTOCOL
            if not dial.connected:
                failure = CallFailure.UNREACHABLE
            elif isinstance(error, TimeoutError):
                failure = CallFailure.TIMEOUT
            elif not dial.ready and isinstance(error, ssl.SSLError):
                failure = CallFailure.TLS
            detail = type(error).__name__
            if isinstance(error, OSError):  # the server wrote the text of an HTTP error
                detail += f": {ascii(str(error))[:_DETAIL_MAX]}"
            raise CallFailed(failure, detail, timings.end()) from error
        finally:
            dial.close()

    def vetted(self, url: TargetUrl, deadline: Deadline) -> tuple[Address, ...]:
        """Return the addresses of the host; raises LookupFailed, also if the rules refuse one of
        them.
        """
        verdicts = self.verdicts(url, deadline)
        for address, why in verdicts.items():
            if why is not None:
                raise LookupFailed(f"{url.host} resolved to {address}: {why}.")
        return tuple(verdicts)

    def verdicts(self, url: TargetUrl, deadline: Deadline) -> dict[Address, str | None]:
        """Return why each address of the host is refused, or None; raises LookupFailed."""
        addresses = (
            (url.literal,)
            if url.literal is not None
            else self._resolver.addresses(url.host, deadline.at, self._tenant_id)
        )
        return {address: self._policy.why_refused(url, address) for address in addresses}

    def _exchange(self, request: http_request.HttpRequest, dial: ConnectionAttempt) -> Exchange:
        url = request.url
        connection: _Plain | _Encrypted
        if url.scheme == "http":
            connection = _Plain(url.host, url.port)
        else:
            tls = self._tls or default_tls()
            connection = _Encrypted(
                url.host, url.port, ssl_context=tls, cert_reqs=ssl.CERT_REQUIRED
            )
        connection.dial = dial
        connection.connect()
        sock: Any = connection.sock
        dial.timings.skip()
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
        dial.timings.step("first_byte")
        body, truncated = self._body(response, sock)
        return Exchange(
            status=response.status,
            headers=tuple(response.headers.items()),
            body=body,
            truncated=truncated,
            timings=dial.timings.end(),
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


# The client of this process, as the settings configure it, and the headers of its requests.


# Seconds, for a SYN and its first repetition after one second. The rest of the attempt's time is
# left for other addresses and the answer.
_CONNECT_TIMEOUT = 3.0
# Bytes of an answer that are read and stored: a receiver must not fill memory or the database.
_ANSWER_MAX_BYTES = 4_096


@lru_cache(maxsize=1_000)
def _parsed(ports: tuple[int, ...], allow: tuple[str, ...]) -> AddressPolicy:
    return address_policy(ports, allow)


def policy(slug: str | None = None) -> AddressPolicy:
    """Return the rules of HTTP_PORTS and HTTP_ALLOW for the tenant with this slug; None: for any
    tenant. Raises InvalidTarget for a bad entry.
    """
    return _parsed(tuple(conf.settings().HTTP_PORTS), conf.allowed("HTTP_ALLOW", slug))


def limits() -> http_request.HttpLimits:
    """Return the limits of a request."""
    return http_request.HttpLimits(
        policy=policy(), timeout=min(conf.settings().HTTP_TIMEOUT, http_request.TIMEOUT_MAX)
    )


def client(tenant_id: int, slug: str | None = None) -> HttpClient:
    """Return a client with the rules of the settings for the requests of a tenant; the slug is
    needed only if HTTP_ALLOW differs between tenants.
    """
    return HttpClient(
        policy(slug),
        resolver=process_state.of(Resolver),
        connect_timeout=_CONNECT_TIMEOUT,
        body_max=_ANSWER_MAX_BYTES,
        tenant_id=tenant_id,
    )


def signing_secrets(tenant_id: int, url: TargetUrl, endpoint: str) -> list[str]:
    """Return the secrets of an endpoint, the current one first.

    The origin is a part of each, so that the name of another endpoint does not lead to its secret.
    """
    keys = conf.settings().HTTP_SIGNING_KEYS
    return [http_request.derived_secret(key, tenant_id, url.origin, endpoint) for key in keys]


def headers_of(request: http_request.HttpRequest, run: Run, now: datetime) -> dict[str, str]:
    """Return the headers of one attempt: ours, the signature, and those of the caller.

    One id identifies the request over all attempts and unedited replays.
    """
    identity = http_request.request_id(run.task_id, run.options)
    ours = {
        "Idempotency-Key": f'"{identity}"',
        "Durable-Task-Id": str(run.task_id),
        "Durable-Attempt": str(run.attempt),
        "Durable-Max-Attempts": str(run.max_attempts),
        "Durable-Scheduled-For": run.scheduled_for.isoformat().replace("+00:00", "Z"),
    }
    if run.recurring_task_id is not None:
        ours["Durable-Schedule-Id"] = str(run.recurring_task_id)
    if "user-agent" not in {name.lower() for name in request.headers}:
        ours["User-Agent"] = f"django-durable-tasks/{__version__}"
    secrets = signing_secrets(run.tenant_id, request.url, request.endpoint)
    signed = http_request.signed_headers(secrets, identity, int(now.timestamp()), request.body)
    return {**ours, **signed, **request.headers}


# The secrets with which requests to a receiver are signed, for the receiver's own check.
#
# Reading them has an audit entry, although nothing is changed: a reader can sign requests that the
# receiver accepts.


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningSecrets:
    """The secrets of an endpoint, the current one first; none if its requests are not signed.

    ``origin`` is None if the messages of a notification setting are no HTTP requests.
    """

    origin: str | None
    endpoint: str
    secrets: list[str]


def secrets_of_callbacks(
    tenant_id: int, url: str, endpoint: str | None, *, by: str, is_setting: bool = False
) -> SigningSecrets:
    """Return the secrets of the callbacks of a tenant to this URL; raises InvalidTarget, and
    InvalidOption for the name of a notification setting unless ``is_setting``.
    """
    target = parsed_url(url)
    name = http_request.endpoint_name(target, endpoint, is_setting=is_setting)
    secrets = signing_secrets(tenant_id, target, name)
    result = SigningSecrets(origin=target.origin, endpoint=name, secrets=secrets)
    record_read_secrets("tenant", tenant_id, tenant_id, result, by)
    return result


def record_read_secrets(
    kind: str, key: int, tenant_id: int, result: SigningSecrets, by: str
) -> None:
    """Add an audit entry, if secrets were returned."""
    if not result.secrets:
        return
    with acting(by=by), recorded("signing_secret.read") as entry:
        entry.subject(kind, key, tenant_id)
        entry.detail(origin=result.origin, endpoint=result.endpoint)
