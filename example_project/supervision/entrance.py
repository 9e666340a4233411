"""Restarts a command in a separate folder, with the settings that its child processes get too."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path


def enter(folder: Path, durable_tasks: Mapping[str, float], **more: str) -> None:
    """Return at once in a process that works in this folder; otherwise restart in it. Settings are
    read only once.

    ``more`` are environment variables for this process and its children.
    """
    if os.environ.get("BILLING_ENTERED") == str(folder):
        return
    environment = {"BILLING_ENTERED": str(folder), "BILLING_FOLDER": str(folder), **more}
    if durable_tasks:
        environment["DURABLE_TASKS"] = json.dumps(dict(durable_tasks))
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment})  # noqa: S606
