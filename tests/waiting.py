"""How a test waits for another thread or process: for a condition, never for a time."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.02


def until(condition: Callable[[], T], *, within: float, message: str = "") -> T:
    """Ask `condition` again and again until its answer is true, and return that answer.

    `within` is in seconds. Raises AssertionError with `message` and the last answer when the time
    is over; an exception of the condition itself is passed on at once.
    """
    deadline = monotonic() + within
    nothing_to_wait_for = Event()
    while not (answer := condition()):
        if monotonic() >= deadline:
            wanted = message or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"not within {within} s: {wanted} (last answer: {answer!r})")
        nothing_to_wait_for.wait(PAUSE)
    return answer
