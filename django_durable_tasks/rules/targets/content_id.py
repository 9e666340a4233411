"""The id of a request to an outside server: that of its task, and another one after an edit.

A receiver ignores a request whose id it has processed. So an edited request needs another id, and
retries and unedited replays keep theirs.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

CONTENT = "content"
"""The key in a task's options: how often its request was edited after an attempt."""


def after_edit(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a task whose request was edited after an attempt."""
    given = dict(options or {})
    return {**given, CONTENT: _edits(given) + 1}


def of_call(
    before: Mapping[str, Any] | None, given: Mapping[str, Any] | None, *, is_edited: bool
) -> dict[str, Any] | None:
    """Return the ``given`` options of a call that replaces the options ``before`` of a task.

    ``is_edited``: the call changes the request after an attempt.
    """
    edits = _edits(before or {}) + is_edited
    kept = {**(given or {}), **({CONTENT: edits} if edits else {})}
    return kept or None


def request_id(task_id: uuid.UUID, options: Mapping[str, Any]) -> str:
    """Return the id of the request of a task with these options."""
    edits = _edits(options)
    return f"{task_id}-{edits}" if edits else str(task_id)


def _edits(options: Mapping[str, Any]) -> int:
    number = options.get(CONTENT, 0)
    return number if isinstance(number, int) else 0
