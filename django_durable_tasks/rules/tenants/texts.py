"""Texts for tenants, who cannot change or read the settings of the installation."""

from __future__ import annotations

import re

_SETTING = re.compile(r"DURABLE_TASKS\[(['\"])[A-Z_]+\1\]")
_EXPLAINED = re.compile(rf"\({_SETTING.pattern}")


def text_for_tenants(text: str) -> str:
    """Return the text without the names of settings, for example that of an exception."""
    if "DURABLE_TASKS" not in text:
        return text
    return _SETTING.sub("a setting of the operator", _EXPLAINED.sub("(set by the operator", text))
