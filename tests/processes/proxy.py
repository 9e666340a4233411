"""A TCP proxy on a private port that cuts, refuses or discards traffic between a process and a
server.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

_CHUNK = 65_536


class Proxy:
    """Forwards to the server at `address`; `url` is its own address."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._loses: Callable[[bytes], bool] | None = None
        self._doomed: set[socket.socket] = set()
        self._swallows: Callable[[bytes], bool] | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        login, at, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))
        self._listen()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._break()

    def freeze(self) -> None:
        """Discard everything in both directions. Connections stay open and new ones are accepted."""
        self._flowing.clear()

    def lose_replies(self, to: Callable[[bytes], bool] | None) -> None:
        """Break a connection when the server has executed a request that ``to`` selects, before its
        reply is forwarded.
        """
        self._loses = to

    def swallow(self, what: Callable[[bytes], bool]) -> None:
        """Discard requests that ``what`` selects. Connections stay open."""
        self._swallows = what

    def storm(self) -> None:
        """Break every connection, and accept new ones."""
        self._break()

    def restore(self) -> None:
        """Forward everything again. Traffic discarded while frozen is lost with its connections."""
        if not self._flowing.is_set():
            self._break()
            self._flowing.set()
        if self._listener.fileno() == -1:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._listen()

    def close(self) -> None:
        """Close the proxy."""
        self.cut()
        self._flowing.set()

    def _break(self) -> None:
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(self._server, timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                with self._lock:
                    self._open |= {client, server}
                for pump, *ends in ((self._ask, client, server), (self._answer, server, client)):
                    threading.Thread(target=self._pump, args=(pump, *ends), daemon=True).start()

    def _ask(self, data: bytes, _client: socket.socket, server: socket.socket) -> bool:
        if self._loses is not None and self._loses(data):
            with self._lock:
                self._doomed.add(server)
        if self._swallows is not None and self._swallows(data):
            return True
        server.sendall(data)
        return True

    def _answer(self, data: bytes, server: socket.socket, client: socket.socket) -> bool:
        if server in self._doomed:
            return False
        client.sendall(data)
        return True

    def _pump(
        self,
        hand_on: Callable[[bytes, socket.socket, socket.socket], bool],
        source: socket.socket,
        target: socket.socket,
    ) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flowing.wait()
                if not hand_on(data, source, target):
                    break
        with self._lock:
            self._doomed -= {source, target}
            self._open -= {source, target}
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def proxy_to(address: str) -> Iterator[Proxy]:
    """Provide a proxy to this server, and close it in any case."""
    proxy = Proxy(address)
    try:
        yield proxy
    finally:
        proxy.close()
