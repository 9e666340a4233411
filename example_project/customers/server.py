"""The servers of the customers, simulated: ``python -m customers.server PORT``.

The path of a request is ``/<customer>/<behaviour>``, for example ``/acme/slow``. Each request is
recorded with the result of the check of its signature. ``GET /<customer>`` returns the records,
``PUT /<customer>`` sets the signing secrets (JSON), as an operator would configure the receiver.
"""

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.webhooks import verified_id

GIGABYTE = 1_000_000_000
PIECE = b"x" * 65_536
HANG_SECONDS, DRIP_BYTES, SLOW_SECONDS = 60, 60, 0.3


@dataclass(frozen=True)
class Received:
    """A request as ``verified_id`` takes it."""

    headers: Any
    body: bytes


class CustomerServer(ThreadingHTTPServer):
    """Serves all customers. ``requests`` and ``secrets`` are by the name of the customer."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), CustomerHandler)
        self.lock = threading.Lock()
        self.requests: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.secrets: dict[str, list[str]] = defaultdict(list)
        self.ids: Counter[str] = Counter()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection: callbacks end at their deadline."""


class CustomerHandler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: CustomerServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Return the records of a customer."""
        with self.server.lock:
            found = list(self.server.requests[self.path.strip("/")])
        self.answer(200, json.dumps(found))

    def do_PUT(self) -> None:
        """Set the signing secrets of a customer."""
        with self.server.lock:
            self.server.secrets[self.path.strip("/")] = json.loads(self._body())
        self.answer(204)

    def do_POST(self) -> None:
        """Record a request and behave as its path says."""
        body = self._body()
        _, customer, behaviour, *_ = [*self.path.split("/"), "", ""]
        count = self._record(customer, behaviour, body)
        BEHAVIOURS.get(behaviour, unknown)(self, body, count)

    def _record(self, customer: str, behaviour: str, body: bytes) -> int:
        """Record a request; return how many had the same id, this one included."""
        with self.server.lock:
            secrets = self.server.secrets[customer]
            try:
                request_id, problem = verified_id(Received(self.headers, body), secrets), ""
            except DurableTasksError as invalid:
                request_id, problem = self.headers.get("webhook-id", ""), str(invalid)
            self.server.ids[request_id] += 1
            self.server.requests[customer].append(
                {
                    "to": behaviour,
                    "id": request_id,
                    "attempt": self.headers.get("Durable-Attempt"),
                    "signature": problem or "valid",
                    "body": body.decode(errors="replace"),
                }
            )
            return self.server.ids[request_id]

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        """Send a complete answer."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body.encode()))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def begin(self, length: int) -> None:
        """Send the head of an answer whose body follows in pieces."""
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


def accept(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that works."""
    handler.answer(200, "thank you")


def slow(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that works, slowly."""
    time.sleep(SLOW_SECONDS)
    handler.answer(200, "thank you")


def recover(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that fails once for each id."""
    handler.answer(503 if count == 1 else 200, "restarting" if count == 1 else "thank you")


def fail(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that always fails."""
    handler.answer(500, "out of order")


def check(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that refuses an invoice without an amount, and says why."""
    with suppress(ValueError):
        if "amount" in json.loads(body):
            handler.answer(200, "thank you")
            return
    handler.answer(422, '{"error": "amount is missing"}')


def close(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that wants no further requests."""
    handler.answer(410, "this address is closed")


def redirect(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that sends its clients into the network of the platform."""
    handler.answer(302, Location="http://169.254.169.254/latest/meta-data/")


def hang(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that does not answer for a minute."""
    time.sleep(HANG_SECONDS)


def stall(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that hangs once for each id."""
    if count == 1:
        time.sleep(HANG_SECONDS)
    handler.answer(200, "thank you")


def flood(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that answers a gigabyte."""
    handler.begin(GIGABYTE)
    for _ in range(GIGABYTE // len(PIECE)):
        handler.wfile.write(PIECE)


def drip(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A server that answers one byte a second."""
    handler.begin(DRIP_BYTES)
    for _ in range(DRIP_BYTES):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(1)


def unknown(handler: CustomerHandler, body: bytes, count: int) -> None:
    """A path without a behaviour."""
    handler.answer(404, f"known paths: {', '.join(BEHAVIOURS)}")


BEHAVIOURS: dict[str, Callable[[CustomerHandler, bytes, int], None]] = {
    "accept": accept,
    "slow": slow,
    "recover": recover,
    "fail": fail,
    "check": check,
    "close": close,
    "redirect": redirect,
    "hang": hang,
    "stall": stall,
    "flood": flood,
    "drip": drip,
    "slack": accept,
    "webhook": accept,
}


if __name__ == "__main__":
    CustomerServer(int(sys.argv[1])).serve_forever()
