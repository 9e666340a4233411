"""Texts for tenants, who cannot change or read the settings of the installation."""

from __future__ import annotations

import re

_SETTING = re.compile(r"DURABLE_TASKS\[(['\"])[A-Z_]+\1\]")
_EXPLAINED = re.compile(rf"\({_SETTING.pattern}")


_UNREADABLE = re.compile(r"\w+ of durable_tasks_\w+ [^\n]*")


def text_for_tenants(text: str) -> str:
    """Return the text without the names of settings, tables and encryption keys, for example that
    of an exception.
    """
    if "durable_tasks_" in text:
        text = _UNREADABLE.sub("A stored value cannot be decrypted. Ask the operator.", text)
    if "DURABLE_TASKS" not in text:
        return text
    return _SETTING.sub("a setting of the operator", _EXPLAINED.sub("(set by the operator", text))
