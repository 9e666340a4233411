"""Numbers with their nouns, for log lines and the command line. The admin uses ``ngettext``."""

from __future__ import annotations


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return ``1 task`` or ``1,200 tasks``. ``plural`` is ``singular`` with an ``s`` by default,
    and may contain the verb, as in ``counted(number, "task waits", "tasks wait")``.
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"
