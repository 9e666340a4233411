"""`python -m tests.chaos.receiver FOLDER SEED`: receives callbacks and notifications, and records
each request before it answers.

Some first requests of a message are refused, answered late, or recorded and not answered. Later
ones are accepted. So a message needs a third attempt only because of a fault.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from django_durable_tasks.exceptions import InvalidSignature
from django_durable_tasks.webhooks import verified_id

PORT, SECRETS, REQUESTS = "receiver.port", "receiver.secrets", "requests.jsonl"
"""Files in the folder: the port, the signing secrets by path, and the recorded requests."""
SLOW = 1.0
NO_ANSWER = 0
_ANSWERS = ((82, 200, False), (8, 204, True), (4, 503, False), (3, 500, False), (3, 0, False))
"""How often the first request of a message is answered with which status, and whether late."""


class Received(NamedTuple):
    """A request as its signature covers it."""

    headers: dict[str, str]
    body: bytes


class Receiver(ThreadingHTTPServer):
    """The server. ``seen`` contains the ids of the messages that it has received."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, seed: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.random, self.seen = folder, random.Random(seed), set[str]()
        self.file = os.open(folder / REQUESTS, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has gone."""

    def answer_to(self, message: str) -> tuple[int, bool]:
        """Return the status for a request, and whether it is answered late."""
        if message in self.seen:
            return 200, False
        self.seen.add(message)
        weights = [weight for weight, *_ in _ANSWERS]
        _, status, late = self.random.choices(_ANSWERS, weights)[0]
        return status, late

    def is_valid(self, path: str, request: Received) -> bool:
        """Return whether a secret of this path has signed the request."""
        try:
            secrets = json.loads((self.folder / SECRETS).read_text())
            verified_id(request, secrets.get(path, []))
        except (OSError, ValueError, InvalidSignature):
            return False
        return True

    def record(self, entry: dict[str, Any]) -> None:
        """Append one line atomically."""
        os.write(self.file, f"{json.dumps(entry)}\n".encode())


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        """Record the request, and answer it."""
        names = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(names.get("content-length", "0")))
        message = names.get("webhook-id", "")
        status, late = self.server.answer_to(message)
        self.server.record(
            {
                "message": message,
                "task": names.get("durable-task-id", ""),
                "setting": self.path.rpartition("/")[2] if "/settings/" in self.path else "",
                "answer": status,
                "valid": self.server.is_valid(self.path, Received(names, body)),
                "key": names.get("idempotency-key", "").strip('"'),
                "content": json.loads(body) if "/settings/" in self.path else None,
            }
        )
        if late:
            threading.Event().wait(SLOW)
        self.close_connection = True
        if status != NO_ANSWER:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the requests are recorded."""


def main(folder: str, seed: str) -> int:
    """Serve until the process is ended."""
    receiver = Receiver(Path(folder), seed)
    new_file = Path(folder) / f"{PORT}.new"
    new_file.write_text(str(receiver.server_port))
    new_file.replace(Path(folder) / PORT)
    receiver.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
