"""Wait for another thread or process: for a condition, never for a time."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.02


def until(condition: Callable[[], T], *, within: float, message: str = "") -> T:
    """Call `condition` repeatedly until it returns a true value, and return that value.

    `within` is in seconds. Raises AssertionError with `message` and the last value after that time.
    An exception of the condition is raised at once.
    """
    deadline = monotonic() + within
    nothing_to_wait_for = Event()
    while not (answer := condition()):
        if monotonic() >= deadline:
            wanted = message or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"not within {within} s: {wanted} (last answer: {answer!r})")
        nothing_to_wait_for.wait(PAUSE)
    return answer
