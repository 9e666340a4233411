"""How a command gets a folder of its own: it starts itself anew, with the settings that its
children get too.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path


def enter(folder: Path, durable_tasks: Mapping[str, float], **more: str) -> None:
    """Return at once in a process that works in this folder; else become one. Settings are read
    only once.

    ``more`` are variables of the environment that this process and its children get.
    """
    if os.environ.get("BILLING_ENTERED") == str(folder):
        return
    environment = {"BILLING_ENTERED": str(folder), "BILLING_FOLDER": str(folder), **more}
    if durable_tasks:
        environment["DURABLE_TASKS"] = json.dumps(dict(durable_tasks))
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment})  # noqa: S606
