"""Mail servers on 127.0.0.1 for tests: they speak enough of SMTP for Django's backend."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

WAIT = 30.0


@dataclass
class MailServer:
    """A mail server in a thread. ``messages`` contains the accepted messages as text.

    ``answers`` maps a command to its answer. ``silent``: it accepts connections and says nothing.
    """

    port: int
    answers: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    messages: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)


@contextmanager
def mail_server(
    *, silent: bool = False, answers: dict[str, str] | None = None
) -> Iterator[MailServer]:
    """Run a mail server. ``answers``: by command, in lower case, instead of acceptance."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        server = MailServer(listener.getsockname()[1], answers or {}, silent)
        thread = threading.Thread(target=_accept, args=(listener, server))
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            thread.join(WAIT)


def _accept(listener: socket.socket, server: MailServer) -> None:
    threads = []
    while not server.stopping.is_set():
        try:
            conn, _ = listener.accept()
        except TimeoutError:
            continue
        thread = threading.Thread(target=_serve, args=(conn, server))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(WAIT)


def _serve(conn: socket.socket, server: MailServer) -> None:
    with suppress(OSError), conn:
        conn.settimeout(WAIT)
        if server.silent:
            server.stopping.wait(WAIT)
            return
        conn.sendall(b"220 test\r\n")
        lines = conn.makefile("rb")
        for raw in lines:
            command = raw.decode().split(" ")[0].strip().lower()
            answer = server.answers.get(command, _ACCEPT.get(command, "250 OK"))
            conn.sendall(f"{answer}\r\n".encode())
            if command == "data" and answer.startswith("354"):
                text = b""
                while not text.endswith(b"\r\n.\r\n"):
                    text += lines.readline()
                server.messages.append(text.decode())
                conn.sendall(b"250 accepted\r\n")
            if command == "quit":
                return


_ACCEPT = {"data": "354 go on", "quit": "221 bye"}
