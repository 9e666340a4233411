"""A client of the HTTP API, as a customer would write it, with the standard library only."""

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

TIMEOUT = 30


@dataclass(frozen=True)
class Answer:
    """The status of an answer, and its JSON."""

    status: int
    body: Any

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.status < http.HTTPStatus.BAD_REQUEST


class Client:
    """Sends requests to one address, with an API key if there is one."""

    def __init__(self, address: str, key: str = "") -> None:
        self._url, self._key = urlsplit(address), key

    def get(self, path: str, **parameters: object) -> Answer:
        """Send a GET with these parameters of the query."""
        return self.send("GET", f"{path}?{urlencode(parameters)}" if parameters else path)

    def post(self, path: str, body: Any = None) -> Answer:
        """Send a POST with JSON."""
        return self.send("POST", path, {} if body is None else body)

    def put(self, path: str, body: Any) -> Answer:
        """Send a PUT with JSON."""
        return self.send("PUT", path, body)

    def send(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request; raises OSError if the server does not answer."""
        connection = http.client.HTTPConnection(
            self._url.hostname or "", self._url.port, timeout=TIMEOUT
        )
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        content = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, self._url.path.rstrip("/") + path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
            return Answer(answer.status, json.loads(text) if text else None)
        finally:
            connection.close()
