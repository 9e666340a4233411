"""Real faults of a process: it is killed, or its connection is terminated."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from kombu.exceptions import ConnectionError as BrokerGone

from tests.waiting import until


def kill(when: str, call: Callable[[], Any]) -> Any:
    """Kill this process with SIGKILL before or after the call."""
    if when == "after":
        call()
    os.kill(os.getpid(), signal.SIGKILL)
    return until(lambda: False, within=10, message="the process is dead")


def drop(when: str, call: Callable[[], Any], wrapper: Any) -> Any:
    """Break the connection before the call, or after it, before the reply is read."""
    if wrapper is None:
        if when == "after":
            call()
        raise BrokerGone("the connection to the broker is gone")
    if when == "before":
        _terminate(wrapper)
    else:
        _discard_reply(wrapper)
    return call()


def _terminate(wrapper: Any) -> None:
    """Let the server end the session, as an operator or a failover does. Returns when it has ended."""
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


def _discard_reply(wrapper: Any) -> None:
    """Close the reading half of the socket: requests arrive and are executed, and no reply is read."""
    if wrapper.vendor == "mysql":
        wrapper.connection._sock.shutdown(socket.SHUT_RD)
        return
    with socket.socket(fileno=os.dup(wrapper.connection.fileno())) as ear:
        ear.shutdown(socket.SHUT_RD)
