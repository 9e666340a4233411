"""Wait for another thread or process: for a condition, never for a time."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

PAUSE, LONG_PAUSE = 0.02, 0.05
"""Seconds between two calls of the condition, in the first second and after it: each call may be a
query, and runs beside this one need the processor.
"""


def until(condition: Callable[[], T], *, within: float, message: str = "") -> T:
    """Call `condition` repeatedly until it returns a true value, and return that value.

    `within` is in seconds. Raises AssertionError with `message` and the last value after that time.
    An exception of the condition is raised at once.
    """
    began = monotonic()
    deadline = began + within
    nothing_to_wait_for = Event()
    while not (answer := condition()):
        if monotonic() >= deadline:
            wanted = message or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"not within {within} s: {wanted} (last answer: {answer!r})")
        nothing_to_wait_for.wait(PAUSE if monotonic() < began + 1 else LONG_PAUSE)
    return answer
