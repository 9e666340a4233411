"""Converts the exception of a task to JSON and back, so that ``get()`` can raise it in another
process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.exceptions import ResultTooLarge, UnserializableResult
from django_durable_tasks.rules.tasks.arguments import JSON_MAX_DEPTH, encode_result
from django_durable_tasks.rules.tasks.masking import ERROR_MAX_BYTES, masked


def described(error: BaseException) -> dict[str, Any] | None:
    """Return the class and the arguments of an exception, with secrets masked; None if they cannot
    be encoded as JSON, or an attribute of the exception raises.
    """
    kind, names = type(error), conf.settings().SECRET_NAMES
    try:
        found = {"module": kind.__module__, "name": kind.__qualname__, "args": list(error.args)}
        if not _fits(found):  # also bounds what is masked: the arguments may contain themselves
            return None
        found["args"] = masked(found["args"], names)
        return found if _fits(found) else None
    except Exception:  # noqa: BLE001 - code of the exception's class and of its arguments
        return None


def _fits(found: Mapping[str, Any]) -> bool:
    try:
        encode_result("", found, max_bytes=ERROR_MAX_BYTES, max_depth=JSON_MAX_DEPTH)
    except (UnserializableResult, ResultTooLarge):
        return False
    return True


def rebuilt(found: Mapping[str, Any] | None) -> Exception | None:
    """Return the exception that ``described`` encoded; None if its class is not loaded here or has
    another signature.

    Nothing is imported. A caller that catches the class has imported it.
    """
    if found is None:
        return None
    kind: Any = sys.modules.get(found["module"])
    for part in found["name"].split("."):
        kind = getattr(kind, part, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return None
    args = tuple(found["args"])
    try:
        error = kind(*args)
    except Exception:  # noqa: BLE001 - a class of the project's, whose signature is not known
        return None
    return error if error.args == args else None
