"""A leader that dies at a point of the trigger: run as a program, it forks one for each line that it reads.

A line says at which of the things that the database is told (statements, and the COMMIT as the last) to die, whether
``before`` or ``after`` it, and for which instant to fire. The answer is ``killed``, or ``lived`` when the trigger came
to its end before that point.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any


def _fire(place: int, when: str, now: datetime) -> None:
    from django.db import connection

    from django_durable_tasks.lifecycle import recurrence
    from django_durable_tasks.lifecycle.connections import own

    told = -1

    def at_its_point(tell: Callable[[], Any]) -> Any:
        nonlocal told
        told += 1
        if (told, when) == (place, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        answer = tell()
        if (told, when) == (place, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def statement(execute: Callable[..., Any], *words: Any) -> Any:
        return at_its_point(lambda: execute(*words))

    with own():
        wrapper: Any = connection
        commit = wrapper._commit
        wrapper._commit = lambda: at_its_point(commit)
        with wrapper.execute_wrapper(statement):
            recurrence.fire_due(now, 100, term=7)


def _fork(place: int, when: str, now: datetime) -> str:
    child = os.fork()
    if not child:
        status = 1
        try:
            _fire(place, when, now)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "killed"
    return "lived" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else f"failed with {status}"


def main() -> None:
    """Answer each line of standard input until it ends."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from tests.project import tasks  # noqa: F401 - the schedules name them

    for line in sys.stdin:
        place, when, now = line.split()
        sys.stdout.write(f"{_fork(int(place), when, datetime.fromisoformat(now))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
