"""A rotation of keys and edits of the same tasks at the same time lose no edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_durable_tasks.models import Task
from django_durable_tasks.tasks import key_rotation
from tests.concurrency.racing import no_errors, race
from tests.database.encryption.keys import use
from tests.project.tasks import echo

TASKS, EDITS, EDITORS = 20, 5, 3


def _edit(editor: int) -> Callable[[], None]:
    def edit() -> None:
        for number in range(EDITS):
            for task in range(editor, TASKS, EDITORS):
                echo.using(key=f"k{task}").schedule(task, f"edit {number}")

    return edit


def _rotate() -> int:
    return sum(batch.changed for batch in key_rotation.rotate(batch=5))


def test_edits_during_a_rotation_are_kept(settings: Any) -> None:
    use(settings, "first")
    rows = [echo.using(key=f"k{task}").schedule(task, "first").pk for task in range(TASKS)]
    use(settings, "second", "first")
    no_errors(race([_rotate, *(_edit(editor) for editor in range(EDITORS)), _rotate]))
    _rotate()
    use(settings, "second")
    found = {row.pk: row for row in Task.objects.all()}
    last = f"edit {EDITS - 1}"
    assert [found[pk].args for pk in rows] == [[task, last] for task in range(TASKS)]
    assert {row.encryption_key for row in found.values()} == {"second"}
    assert not sum(key_rotation.remaining().values())
