"""Serves the metrics of a scheduler over HTTP, for ``run_scheduler --metrics-port``."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from django.db import Error

from django_durable_tasks.engine.db.outages import reason_of
from django_durable_tasks.metrics.exposition import written

logger = logging.getLogger("django_durable_tasks.metrics")
PATH = "/metrics"
_REQUEST_TIMEOUT = 10.0


class MetricsRequestHandler(BaseHTTPRequestHandler):
    """Answers GET /metrics, and 404 for every other address."""

    timeout = _REQUEST_TIMEOUT
    server_version = "django-durable-tasks"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the metrics, or with 503 if the database does not answer."""
        if self.path.partition("?")[0] != PATH:
            self._answer(404, b"Only /metrics exists.\n", "text/plain")
            return
        try:
            body, content_type = written(self.headers.get("Accept", ""))
        except Error as error:
            logger.warning("The metrics were not read: %s", reason_of(error))
            self._answer(503, b"The database is unavailable.\n", "text/plain")
            return
        self._answer(200, body, content_type)

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write the access log at level DEBUG."""
        logger.debug(format, *args)


class MetricsServer(ThreadingHTTPServer):
    """An HTTP server in a thread of its own; raises OSError if the address cannot be bound."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), MetricsRequestHandler)
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and close the socket."""
        self.shutdown()
        self.server_close()
