"""Fork child processes of this initialized process, with connections of their own."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, connections
from django.db.utils import InterfaceError

from django_durable_tasks.celery import publisher
from django_durable_tasks.exceptions import BrokerUnavailable
from django_durable_tasks.store.connections import close_all
from tests.process_state import ignore_notification_settings

PATIENCE = 60  # seconds, after which a blocked child is killed by its alarm
DONE, FAILED, AWAY = 0, 1, 2
_inherited: list[Any] = []


@dataclass(frozen=True, slots=True)
class Fate:
    """How a child ended, and what it wrote."""

    status: int
    said: list[str]

    @property
    def killed(self) -> bool:
        """Return whether it died by SIGKILL."""
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def lived(self) -> bool:
        """Return whether it completed, or reported that database or broker is unavailable."""
        return os.WIFEXITED(self.status) and os.WEXITSTATUS(self.status) in (DONE, AWAY)

    @property
    def done(self) -> bool:
        """Return whether it completed."""
        return os.WIFEXITED(self.status) and os.WEXITSTATUS(self.status) == DONE


def in_child(act: Callable[[int], None]) -> Fate:
    """Run the function in a child, which may write lines to the given descriptor."""
    _close_inherited()
    ear, mouth = os.pipe()
    child = os.fork()
    if not child:
        os.close(ear)
        _live(act, mouth)
    os.close(mouth)
    with os.fdopen(ear) as lines:
        said = lines.read().splitlines()
    return Fate(os.waitpid(child, 0)[1], said)


def _close_inherited() -> None:
    """Close what a child must not inherit: broker connections, and SQLite, whose locks belong to a
    process.
    """
    close_all()
    publisher.close_idle()
    for wrapper in connections.all(initialized_only=True):
        if wrapper.vendor == "sqlite":
            wrapper.close()


def _live(act: Callable[[int], None], mouth: int) -> None:
    code = FAILED
    # A thread would read them, at another point of each repetition.
    ignore_notification_settings()
    try:
        signal.alarm(PATIENCE)
        for wrapper in connections.all(initialized_only=True):
            _inherited.append(wrapper.connection)  # never closed: the socket is the parent's
            wrapper.connection = None
        act(mouth)
        code = DONE
    except (DatabaseError, InterfaceError, BrokerUnavailable):
        code = AWAY
    except BaseException:  # noqa: BLE001 - nothing of the parent's may go on in the child
        os.write(mouth, traceback.format_exc().encode())
    finally:
        os._exit(code)
