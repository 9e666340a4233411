"""A process that dies at a point of what is done to a graph: run as a program, it forks one for each line it reads.

A line says at which of the things that the database is told (statements, and COMMITs) to die, whether ``before`` or
``after`` it, what to do (one of DEEDS) and to which row. The answer is ``killed``, or ``lived`` when it came to its
end.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Callable
from typing import Any


def _spread(_: uuid.UUID) -> None:
    from django_durable_tasks.lifecycle import dependencies

    dependencies.spread(500)


def _end_and_tell(task_id: uuid.UUID) -> None:
    from django_durable_tasks.lifecycle import attempts, dependencies

    attempts.succeed(_run(task_id), None, "w")
    dependencies.spread_of(task_id)


def _fold(_: uuid.UUID) -> None:
    from django_durable_tasks.lifecycle import workflow_runs

    workflow_runs.fold(500)


def _start(_: uuid.UUID) -> None:
    from tests.concurrency.test_graph_crashes import a_workflow

    a_workflow().start(key="the one")


def _graft(task_id: uuid.UUID) -> None:
    from django_durable_tasks.lifecycle import attempts
    from tests.concurrency.test_graph_crashes import a_growth

    attempts.succeed(_run(task_id), None, "w", (a_growth(),))


def _replay(task_id: uuid.UUID) -> None:
    from django_durable_tasks.lifecycle import dead_letters
    from django_durable_tasks.models import Task

    dead_letters.replay(Task.objects.filter(pk=task_id), by="bob")


def _run(task_id: uuid.UUID) -> Any:
    from django_durable_tasks.models import Task
    from tests.factories import a_run

    return a_run(Task.objects.get(pk=task_id))


DEEDS: dict[str, Callable[[uuid.UUID], None]] = {
    "spread": _spread, "end_and_tell": _end_and_tell, "fold": _fold, "start": _start, "graft": _graft,
    "replay": _replay,
}  # fmt: skip


def _do(place: int, when: str, deed: str, task_id: uuid.UUID) -> None:
    from django.db import connection

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

    with own():
        wrapper: Any = connection
        commit = wrapper._commit
        wrapper._commit = lambda: at_its_point(commit)
        with wrapper.execute_wrapper(lambda execute, *words: at_its_point(lambda: execute(*words))):
            DEEDS[deed](task_id)


def _fork(place: int, when: str, deed: str, task_id: uuid.UUID) -> str:
    child = os.fork()
    if not child:
        status = 1
        try:
            _do(place, when, deed, task_id)
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
    from tests.project import tasks  # noqa: F401 - the rows name them

    for line in sys.stdin:
        place, when, deed, task_id = line.split()
        sys.stdout.write(f"{_fork(int(place), when, deed, uuid.UUID(task_id))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
