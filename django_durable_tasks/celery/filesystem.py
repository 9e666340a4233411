"""A broker that is a folder: kombu's filesystem transport, made atomic.

One folder (`broker_transport_options["data_folder"]`, or the path of the URL) contains a
sub-folder per queue, with one file per message, and a sub-folder per exchange, with one file
per binding. Each file is written under a temporary name and renamed, so no reader sees a
partial file, and no lock is needed. Names begin with the inverted priority and the time of
arrival: 9 goes first, then the oldest. A message is taken by a rename, so two consumers never
take the same.

Guarantees: a published message is taken at most once. A consumer that is killed loses the
messages it had taken and not finished; their tasks are republished. Nothing is synced to
disk: the row in the database is the truth, and after a power cut an empty file is moved aside
like any other that cannot be read (`*.undecodable`, logged once, kept). A kill in the very
middle of a write or a take leaves a `*.tmp` or `*.taken` file that is never read.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import time
from contextlib import suppress
from queue import Empty
from typing import Any

from celery.exceptions import ImproperlyConfigured
from kombu.exceptions import ConnectionError as FolderUnusable
from kombu.log import get_logger
from kombu.transport import TRANSPORT_ALIASES, filesystem, virtual
from kombu.transport.filesystem import exchange_queue_t
from kombu.utils.json import dumps, loads

# The plain calls of os, because pathlib would double what they cost, and every message passes here.
# kombu is untyped, and its own base classes disagree about the names of parameters.
# ruff: noqa: PTH103, PTH104, PTH105, PTH108, PTH112, PTH116, PTH117, PTH120, PTH123, PTH208
# mypy: disable-error-code="no-untyped-call, override"


ALIAS = "durable-filesystem"
MESSAGE, BINDING, ALIVE = ".msg", ".binding", "alive"
# Seconds without a sign of its consumer after which a temporary queue receives no more copies.
ABANDONED_AFTER = 300.0
SHOW_LIFE_EVERY = 60.0
SHORTEST_PAUSE = 0.001
LONGEST_TURN = 0.05  # seconds for which a full queue may occupy Celery's event loop

logger = get_logger(__name__)
_numbers = itertools.count()
# Two containers that share a folder may have the same process ids.
_process_family = os.urandom(4).hex()


def register() -> None:
    """Make `durable-filesystem://` known to kombu. May be called again; needs no Django."""
    TRANSPORT_ALIASES[ALIAS] = f"{__name__}:Transport"


# Bytes. File systems allow 255, and an upper-case letter is encoded as three.
_LONGEST_FOLDER = 255


def _folder_name(name: str) -> str:
    # Lower case and no dots: neither a case-blind file system nor a name such as ".." may join two
    # queues.
    encoded = re.sub(rb"[^a-z0-9_-]", lambda match: b"%%%02x" % ord(match[0]), name.encode())
    if len(encoded) > _LONGEST_FOLDER:
        # "%-" is no escaped byte, so that no other name has this folder.
        encoded = encoded[:100] + b"%-" + hashlib.sha256(name.encode()).hexdigest().encode()
    return encoded.decode() or "%"


# Errors of a folder are reported as a lost connection. Celery's worker then reconnects. An error of
# a channel would end it.


def _names(folder: str, ending: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(ending)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FolderUnusable(f"Cannot list {folder}: {error}") from error


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise FolderUnusable(f"Cannot make {folder}: {error}") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise FolderUnusable(f"Cannot use {folder}: no right to read and write there")


def _write(path: str, content: bytes, *, again: bool = True) -> None:
    temporary = f"{path}.{os.getpid()}.{next(_numbers)}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        if again and isinstance(error, FileNotFoundError):
            _make(os.path.dirname(path))
            _write(path, content, again=False)
            return
        raise FolderUnusable(f"Cannot write {path}: {error}") from error


class Channel(filesystem.Channel):
    """Carry messages as files; the public interface is kombu's."""

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._listed: dict[str, tuple[list[str], float]] = {}
        self._bindings: dict[str, dict[str, exchange_queue_t]] = {}
        self._show_life_at: dict[str, float] = {}

    def _queue_folder(self, queue: str) -> str:
        return f"{self.connection.data_folder}/queues/{_folder_name(queue)}"

    def _exchange_folder(self, exchange: str) -> str:
        return f"{self.connection.data_folder}/control/{_folder_name(exchange)}"

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        rank = self._get_message_priority(message, reverse=True)
        number = f"{time.time_ns():020d}-{next(_numbers):010d}"
        name = f"{rank}-{number}-{os.getpid()}-{_process_family}{MESSAGE}"
        _write(f"{self._queue_folder(queue)}/{name}", dumps(message).encode())

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        if time.monotonic() >= self._show_life_at.get(queue, float("inf")):
            self._show_life(queue)
        folder = self._queue_folder(queue)
        while name := self._next_name(queue, folder):
            if (payload := self._take(f"{folder}/{name}")) is not None:
                return payload
        raise Empty

    def _next_name(self, queue: str, folder: str) -> str | None:
        # A listing serves many takes: with thousands of files one a message would be quadratic. It
        # is renewed when its
        # cost allows, so that an urgent message does not wait behind the whole of an old one.
        names, fresh_until = self._listed.get(queue, ([], 0.0))
        now = time.monotonic()
        if not names or now >= fresh_until:
            names = sorted(_names(folder, MESSAGE), reverse=True)
            cost = time.monotonic() - now
            self._listed[queue] = names, now + max(self.connection.polling_interval, 20 * cost)
        return names.pop() if names else None

    def _take(self, path: str) -> dict[str, Any] | None:
        taken = f"{path}.taken"
        try:
            os.rename(path, taken)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FolderUnusable(f"Cannot take {path}: {error}") from error
        try:
            payload = self._read(taken)
        except Exception as error:  # noqa: BLE001 (one bad file must not stop the consumer)
            with suppress(OSError):
                os.replace(taken, f"{path}.undecodable")
            logger.error("Moved an unreadable message aside: %s.undecodable (%r)", path, error)
            return None
        with suppress(OSError):
            os.unlink(taken)
        return payload

    def _read(self, path: str) -> dict[str, Any]:
        with open(path, "rb") as file:
            payload: dict[str, Any] = loads(file.read())
        # Built once for the proof: what kombu cannot build later would end the worker's loop.
        message = self.Message(payload, channel=self)
        mappings = message.headers, message.properties, message.delivery_info
        if not isinstance(message.delivery_tag, str) or not all(
            isinstance(mapping, dict) for mapping in mappings
        ):
            raise TypeError("not a message")
        return payload

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge, and let the event loop read the next message at once, now that there is
        capacity.
        """
        super().basic_ack(delivery_tag, multiple)
        if self.connection is not None and self.connection.loop is not None:
            self.connection.loop.call_later(0, self.connection.deliver_ready)

    def _size(self, queue: str) -> int:
        return len(_names(self._queue_folder(queue), MESSAGE))

    def _purge(self, queue: str) -> int:
        folder, removed = self._queue_folder(queue), 0
        for name in _names(folder, MESSAGE):
            with suppress(FileNotFoundError):
                os.unlink(f"{folder}/{name}")
                removed += 1
        return removed

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return os.path.isdir(self._queue_folder(queue))

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        folder = self._queue_folder(queue)
        _make(folder)
        if auto_delete:
            _write(f"{folder}/{ALIVE}", b"")
            self._show_life_at[queue] = time.monotonic() + SHOW_LIFE_EVERY

    def _show_life(self, queue: str) -> None:
        self._new_queue(queue, auto_delete=True)
        for exchange, routing_key, arguments in self.state.queue_bindings(queue):
            self._queue_bind(
                exchange,
                *self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments),
            )

    def _is_abandoned(self, queue: str) -> bool:
        try:
            return (
                time.time() - os.stat(f"{self._queue_folder(queue)}/{ALIVE}").st_mtime
                > ABANDONED_AFTER
            )
        except OSError:
            return False

    def _binding_file(self, exchange: str, *binding: str | None) -> tuple[str, bytes]:
        content = dumps([name or "" for name in binding]).encode()
        return (
            f"{self._exchange_folder(exchange)}/{hashlib.sha256(content).hexdigest()}{BINDING}",
            content,
        )

    def _queue_bind(
        self, exchange: str, routing_key: str | None, pattern: str | None, queue: str
    ) -> None:
        _write(*self._binding_file(exchange, routing_key, pattern, queue))

    def get_table(self, exchange: str) -> list[exchange_queue_t]:
        """Return the bindings of `exchange` that any process declared, without those of abandoned
        queues.
        """
        folder, known = self._exchange_folder(exchange), self._bindings.get(exchange, {})
        table = {}
        for name in _names(folder, BINDING):
            # A binding's name is the hash of its content, so what was read once stays true. One
            # that vanished, or that a power cut emptied, does not count until its declarer writes
            # it again.
            with suppress(FileNotFoundError, TypeError, ValueError):
                table[name] = known.get(name) or _read_binding(f"{folder}/{name}")
        self._bindings[exchange] = table
        bindings = []
        for binding in table.values():
            if self._is_abandoned(binding.queue):
                self._delete(binding.queue, exchange, binding.routing_key, binding.pattern)
            else:
                bindings.append(binding)
        return bindings

    def _delete(
        self,
        queue: str,
        exchange: str,
        routing_key: str | None,
        pattern: str | None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self._show_life_at.pop(queue, None)
        with suppress(FileNotFoundError):
            os.unlink(self._binding_file(exchange, routing_key, pattern, queue)[0])
        shutil.rmtree(self._queue_folder(queue), ignore_errors=True)


class Transport(filesystem.Transport):
    """Connect to a folder.

    Options: `data_folder` (absolute path; or as the path of the URL, which wins),
    `polling_interval` (seconds, 0.05). Raises ImproperlyConfigured without a folder: one chosen
    here would not be the one that the other processes use.
    """

    Channel = Channel
    implements = filesystem.Transport.implements.extend(asynchronous=True)
    polling_interval = 0.05
    default_connection_params: dict[str, Any] = {}  # kombu's would warn that no host is named
    _states: dict[str, virtual.BrokerState] = {}

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.data_folder = data_folder(client)
        self.state = self._states.setdefault(self.data_folder, virtual.BrokerState())
        self.loop: Any = None
        self._pause = self.polling_interval

    def establish_connection(self) -> Any:
        """Open the folder, making it where needed. Raises kombu's ConnectionError where it cannot
        be used.
        """
        _make(f"{self.data_folder}/queues")
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Leave the event loop and close the channels, which hands back what was not
        acknowledged.
        """
        self.loop = None
        super().close_connection(connection)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver from Celery's event loop, as the big brokers do: its other loop stops while all
        children are busy.
        """
        # A timer, not `on_tick`, whose order is that of a set: what is delivered after the pool's
        # own tick reaches a
        # child one poll later.
        self.loop = loop
        loop.call_later(self.polling_interval, self._poll_again)

    def _poll_again(self) -> None:
        loop, pause = self.loop, self.polling_interval
        if loop is None:
            return
        try:
            if self.deliver_ready():
                pause = SHORTEST_PAUSE
            elif any(not channel.qos.can_consume() for channel in self.channels):
                pause = min(
                    self._pause * 2, pause
                )  # a pool of threads acknowledges without waking the loop
        finally:
            self._pause = pause
            loop.call_later(pause, self._poll_again)

    def deliver_ready(self) -> int:
        """Deliver what is there and wanted, within `LONGEST_TURN`, and return how many."""
        end, delivered = time.monotonic() + LONGEST_TURN, 0
        with suppress(Empty):
            while time.monotonic() < end:
                self.cycle.get(self._deliver)
                delivered += 1
        return delivered


def _read_binding(path: str) -> exchange_queue_t:
    with open(path, "rb") as file:
        return exchange_queue_t(*loads(file.read()))


def data_folder(client: Any) -> str:
    """Return the folder of this connection; raises ImproperlyConfigured without an
    absolute path.
    """
    in_url = (client.virtual_host or "").strip("/")
    if client.hostname not in (None, "", "localhost"):
        raise ImproperlyConfigured(
            f"{ALIAS}://{client.hostname}…: write three slashes before an absolute path"
        )
    folder = f"/{in_url}" if in_url else client.transport_options.get("data_folder")
    if not folder or not os.path.isabs(folder):
        raise ImproperlyConfigured(
            f"{ALIAS}:// needs an absolute path that all its processes share, in "
            f'broker_transport_options["data_folder"] or as {ALIAS}:///absolute/path (got'
            f" {folder!r})"
        )
    return os.path.normpath(folder)
