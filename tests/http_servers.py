"""Real servers on 127.0.0.1 for tests of outgoing requests: a listener whose behaviour is a function
of the connection.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.waiting import until

Behaviour = Callable[[socket.socket, bytes], None]
WAIT = 30.0


@dataclass
class Listener:
    """A server in threads. ``requests`` contains the received requests, head and body."""

    port: int
    requests: list[bytes] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    connections: int = 0

    def url(self, path: str = "/", scheme: str = "http", host: str = "127.0.0.1") -> str:
        """Return a URL of this server."""
        return f"{scheme}://{host}:{self.port}{path}"

    def headers(self, number: int = -1) -> dict[str, str]:
        """Return the headers of a received request, by names in lower case."""
        head = self.requests[number].partition(b"\r\n\r\n")[0].decode()
        pairs = (line.split(": ", 1) for line in head.split("\r\n")[1:])
        return {name.lower(): value for name, value in pairs}

    def body(self, number: int = -1) -> bytes:
        """Return the body of a received request."""
        return self.requests[number].partition(b"\r\n\r\n")[2]

    def received(self, number: int) -> None:
        """Wait until this many requests have arrived."""
        until(lambda: len(self.requests) >= number, within=WAIT, message=f"{number} requests")


@contextmanager
def listening(behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[Listener]:
    """Run a server that calls the function with each connection and its request."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.settimeout(0.05)
        listener = Listener(server.getsockname()[1])
        thread = threading.Thread(target=_accept, args=(server, listener, behaviour, tls))
        thread.start()
        try:
            yield listener
        finally:
            listener.stopping.set()
            thread.join(WAIT)


def _accept(
    server: socket.socket, listener: Listener, behaviour: Behaviour, tls: ssl.SSLContext | None
) -> None:
    threads = []
    while not listener.stopping.is_set():
        try:
            conn, _ = server.accept()
        except TimeoutError:
            continue
        listener.connections += 1
        thread = threading.Thread(target=_serve, args=(conn, listener, behaviour, tls))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(WAIT)


def _serve(
    conn: socket.socket, listener: Listener, behaviour: Behaviour, tls: ssl.SSLContext | None
) -> None:
    with suppress(OSError):
        conn.settimeout(WAIT)
        if tls is not None:
            conn = tls.wrap_socket(conn, server_side=True)
        request = _request(conn)
        listener.requests.append(request)
        behaviour(conn, request)
    with suppress(OSError):
        conn.close()


def _request(conn: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = conn.recv(65_536)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while lengths and len(body) < lengths[0]:
        piece = conn.recv(65_536)
        if not piece:
            break
        body += piece
    return head + b"\r\n\r\n" + body


def answer(status: str = "200 OK", body: bytes = b"", **headers: str) -> bytes:
    """Return an answer; underscores in the names of headers become hyphens."""
    pairs = {"Content-Length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in pairs.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


def answering(*answers: bytes) -> Behaviour:
    """Return a behaviour that sends these answers in turn, the last one for all later requests."""
    rest = list(answers)

    def send(conn: socket.socket, _: bytes) -> None:
        conn.sendall(rest.pop(0) if len(rest) > 1 else rest[0])

    return send
