"""A process that dies at a given point of a large start. Run as a program, it forks one process for
each line that it reads.

A line contains the number of a statement or COMMIT, ``before`` or ``after``, and the name of the
workflow. The answer is ``killed``, or ``lived`` if the start completed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

LARGE, BATCH = 5, 10


def layered(name: str) -> Any:
    """Return a workflow of fourteen tasks: five roots, a second layer, a sub-workflow, and one that
    depends on all.
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

    from django_durable_tasks.workflows import runs

    runs.LARGE, runs.BATCH = LARGE, BATCH
    count = -1

    def at_its_point(call: Callable[[], Any]) -> Any:
        nonlocal count
        count += 1
        if (count, when) == (place, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call()
        if (count, when) == (place, "after"):
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
