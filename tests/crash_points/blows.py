"""What may befall a process in the middle of its work: it dies, or its connection does; nothing of
it is played.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from kombu.exceptions import ConnectionError as BrokerGone

from tests.waiting import until


def kill(when: str, tell: Callable[[], Any]) -> Any:
    """Die by SIGKILL before or after the thing is told."""
    if when == "after":
        tell()
    os.kill(os.getpid(), signal.SIGKILL)
    return until(lambda: False, within=10, message="the process is dead")


def drop(when: str, tell: Callable[[], Any], wrapper: Any) -> Any:
    """Lose the connection before the thing is told, or after it, on the way of the reply."""
    if wrapper is None:
        if when == "after":
            tell()
        raise BrokerGone("the connection to the broker is gone")
    if when == "before":
        _terminate(wrapper)
    else:
        _deafen(wrapper)
    return tell()


def _terminate(wrapper: Any) -> None:
    """Let the server end the session, as an operator or a fail-over does; returns when it
    is gone.
    """
    driver, postgresql = wrapper.connection, wrapper.vendor == "postgresql"
    number = driver.info.backend_pid if postgresql else driver.thread_id()
    operator = wrapper.copy()
    try:
        with operator.cursor() as cursor:
            cursor.execute(
                f"SELECT pg_terminate_backend({number}, 5000)" if postgresql else f"KILL {number}"
            )
        if not postgresql:
            until(lambda: not _listed(operator, number), within=10, message="the session is gone")
    finally:
        operator.close()


def _listed(operator: Any, number: int) -> bool:
    with operator.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %s", [number]
        )
        return bool(cursor.fetchone()[0])


def _deafen(wrapper: Any) -> None:
    """Close the reading half of the socket: what is sent arrives and is done, and no reply is ever
    read.
    """
    if wrapper.vendor == "mysql":
        wrapper.connection._sock.shutdown(socket.SHUT_RD)
        return
    with socket.socket(fileno=os.dup(wrapper.connection.fileno())) as ear:
        ear.shutdown(socket.SHUT_RD)
