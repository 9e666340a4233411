"""A starter that dies at a point of a large start: run as a program, it forks one for each line
that it reads.

A line says at which of the things that the database is told (statements and COMMITs) to die,
whether ``before`` or ``after`` it, and under which name to start. The answer is ``killed``, or
``lived`` when the start came to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

LARGE, BATCH = 5, 10


def layered(name: str) -> Any:
    """Return a workflow of fourteen tasks: five roots, a second layer, a sub-workflow, one that
    waits for all.
    """
    from django_durable_tasks import Workflow
    from tests.project.tasks import noop

    wf, sub = Workflow(name), Workflow(f"{name}.within")
    roots = [wf.add(noop, step=f"root {number}") for number in range(5)]
    second = [wf.add(noop, after=roots[:2], step=f"second {number}") for number in range(5)]
    sub.add(noop, after=sub.add(noop, step="upper"), step="lower")
    wf.add(noop, after=[*second, wf.add_workflow(sub, after=roots[4], step="within")], step="last")
    return wf


def _start(place: int, when: str, name: str) -> None:
    from django.db import connection

    from django_durable_tasks.engine.workflows import start

    start.LARGE, start.BATCH = LARGE, BATCH
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

    connection.ensure_connection()
    wrapper: Any = connection
    commit = wrapper._commit
    wrapper._commit = lambda: at_its_point(commit)
    with wrapper.execute_wrapper(lambda execute, *words: at_its_point(lambda: execute(*words))):
        layered(name).start()


def _fork(place: int, when: str, name: str) -> str:
    child = os.fork()
    if not child:
        status = 1
        try:
            _start(place, when, name)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return "killed"
    return (
        "lived" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else f"failed with {status}"
    )


def main() -> None:
    """Answer each line of standard input until it ends."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    for line in sys.stdin:
        place, when, name = line.split()
        sys.stdout.write(f"{_fork(int(place), when, name)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
