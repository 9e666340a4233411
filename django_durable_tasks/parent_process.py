"""A child process that ends with the process that started it.

The parent keeps the write end of a pipe, and the child waits for the end of the file at the read
end. The system closes the pipe when the parent dies, even by SIGKILL. No process id is compared.
"""

from __future__ import annotations

import os
import signal
import threading

# The file descriptor of the read end, for a child that a parent supervises.
VARIABLE = "DURABLE_TASKS_PARENT_PIPE"


def end_with_parent() -> None:
    """Send SIGTERM to this process when its parent has ended. Without a supervising parent nothing
    happens.
    """
    descriptor = os.environ.pop(VARIABLE, "")
    if descriptor.isdecimal():
        os.set_inheritable(int(descriptor), False)
        threading.Thread(
            target=_wait_for_end, args=(int(descriptor),), name="durable-parent", daemon=True
        ).start()


def _wait_for_end(descriptor: int) -> None:
    os.read(descriptor, 1)
    os.kill(os.getpid(), signal.SIGTERM)
