"""The durable tasks of the test project, one for each feature under test."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group

from django_durable_tasks import Retry, Schedule, durable_task


class Broken(Exception):
    """The exception of the failing tasks."""


class Hopeless(Exception):
    """An exception that is never retried."""


@durable_task
def noop() -> None:
    """Do nothing."""


@durable_task
def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right


@durable_task
def echo(*values: Any, **named: Any) -> dict[str, Any]:
    """Return the arguments."""
    return {"values": list(values), "named": named}


@durable_task(
    max_attempts=3, backoff="FIXED", backoff_base=60, jitter=False, give_up_on=(Hopeless,)
)
def failing(text: str = "broken") -> None:
    """Raise; three attempts, a minute apart."""
    raise Hopeless(text) if text == "hopeless" else Broken(text)


@durable_task(max_attempts=1)
def failing_once(text: str = "broken") -> None:
    """Raise; there is no second attempt."""
    raise Broken(text)


@durable_task(max_attempts=5)
def retrying(after: float | None = None) -> None:
    """Request a retry."""
    raise Retry(after=after, reason="not yet")


@durable_task(bind=True, max_attempts=5)
def third_time_lucky(self: Any) -> int:
    """Fail twice, then return the number of the attempt."""
    attempt: int = self.durable.attempt
    if attempt < 3:
        raise Broken(f"try {attempt}")
    return attempt


@durable_task(atomic=True, max_attempts=2, backoff="FIXED", backoff_base=60, jitter=False)
def write_name(name: str, *, fail: bool = False) -> str:
    """Write a row in the transaction of the success, and fail after it on request."""
    Group.objects.create(name=name)
    if fail:
        raise Broken(name)
    return name


@durable_task(unique="{task}:{0}")
def unique(subject: str, detail: str = "") -> str:
    """Run at most once at a time per subject."""
    return f"{subject}:{detail}"


@durable_task(unique="{task}:{0}", unique_on_conflict="RAISE")
def unique_or_raise(subject: str) -> str:
    """Run at most once at a time per subject; a second call raises."""
    return subject


@durable_task(unique="{task}:{0}", unique_on_conflict="REPLACE")
def unique_latest(subject: str, detail: str = "") -> str:
    """Run at most once at a time per subject; a second call replaces the first."""
    return f"{subject}:{detail}"


@durable_task(unique="{task}:{0}", unique_for=3600)
def unique_for_an_hour(subject: str) -> str:
    """Do nothing for an hour after a success for the same subject."""
    return subject


@durable_task
def chain(length: int) -> Any:
    """Return the next task of a chain of this length."""
    return Schedule(chain, (length - 1,)) if length > 1 else "the end"


@durable_task
def fan(numbers: list[int]) -> Any:
    """Return one ``add`` for each number."""
    return [Schedule(add, (number, 1)) for number in numbers]


@durable_task
def bad_chain() -> Any:
    """Return a follow-up whose arguments do not match."""
    return Schedule(add, (1, 2, 3))


@durable_task(bind=True)
def reporting(self: Any, total: int) -> None:
    """Report progress, and stop when its cancellation is requested."""
    for done in range(total):
        self.durable.progress(done + 1, total, "counting")
        self.durable.check()


@durable_task(priority=7, queue="urgent")
def urgent() -> None:
    """Do nothing, in a separate queue."""


@durable_task(expires_in=30)
def perishable() -> None:
    """Expire half a minute after its time."""


@durable_task(on_orphan="DEAD_LETTER")
def irreplaceable() -> None:
    """Never run again after its worker died."""
