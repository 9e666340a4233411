"""Places where a process of the test project dies once: TEST_FAILPOINT names the place and a file
that arms it.
"""

import os
import signal
from pathlib import Path
from typing import Any

from celery import signals


def _before_the_gate(sender: Any = None, **_: Any) -> None:
    place, _colon, file = os.environ["TEST_FAILPOINT"].partition(":")
    if not hasattr(sender, "durable_options") or not Path(file).exists():
        return
    Path(file).unlink()
    if place == "prerun-worker":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def arm() -> None:
    """Connect the failpoints if the environment names one."""
    place, _colon, _file = os.environ.get("TEST_FAILPOINT", "").partition(":")
    if place:
        signals.task_prerun.connect(_before_the_gate, weak=False)
