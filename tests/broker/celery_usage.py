"""UsageCase of Celery as a table: each case is executed with a plain task and with its durable
equivalent, and compared.

A case whose durable task deliberately behaves differently states the difference. The page on moving
from Celery lists the same differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from celery import chord, current_app, group, signature
from celery.result import AsyncResult, ResultSet

from tests.project import celery_usages
from tests.waiting import until

WITHIN = 30.0
ENDED = ("SUCCESS", "FAILURE", "REVOKED")


class _Same:
    """Marks a case without a difference."""


SAME: Any = _Same()


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two kinds of task, with a file into which its bodies write."""

    kind: str
    notebook: Path

    def __getattr__(self, name: str) -> Any:
        """Return the task of this name of this kind."""
        return getattr(getattr(celery_usages, name), self.kind)

    def noted(self) -> list[str]:
        """Return what the bodies wrote."""
        return self.notebook.read_text().splitlines() if self.notebook.exists() else []

    @property
    def notes(self) -> str:
        """The path of the file, as an argument of a task."""
        return str(self.notebook)

    def ended(self, result: Any, *, runs: int = 0) -> tuple[str, list[str]]:
        """Wait until the task has ended and has run `runs` times. Returns its state and what its
        runs wrote.
        """
        until(lambda: result.state in ENDED and len(self.noted()) >= runs, within=WITHIN)
        return str(result.state), self.noted()

    def ended_notes(self, result: Any) -> list[str]:
        """Wait until a run has written to the file, and return that. Celery's ``*_on_commit``
        returns no result.
        """
        return until(self.noted, within=WITHIN)

    def raised(self, call: Callable[[], Any]) -> str:
        """Return the name of the exception that the call raises, or an empty string."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - any error is an answer here
            return type(error).__name__
        return ""


@dataclass(frozen=True, slots=True)
class UsageCase:
    """One case: an action with a task of either kind, and the result of a durable one if it differs
    from Celery's.
    """

    do: Callable[[Side], Any]
    instead: Any = SAME


def _retried(side: Side, **options: Any) -> Any:
    return side.ended(side.fail_by_retry.delay(side.notes, **options))


def _by_id(side: Side, result: Callable[[str], Any], **options: Any) -> Any:
    return result(side.add.apply_async((1, 2), **options).id).get(timeout=WITHIN)


def _set(side: Side) -> Any:
    return ResultSet([AsyncResult(side.add.delay(1, number).id) for number in range(3)])


def _told(side: Side) -> Any:
    result = AsyncResult(side.add.delay(1, 2).id)
    result.get(timeout=WITHIN)
    return (
        result.state,
        result.ready(),
        result.successful(),
        type(result.date_done),
        bool(result.worker),
    )


def _by_control(task_id: str, **options: Any) -> None:
    current_app.control.revoke(task_id, **options)


def _by_result(task_id: str, **options: Any) -> None:
    AsyncResult(task_id).revoke(**options)


def _by_command(task_id: str, **options: Any) -> None:
    """Revoke as Celery's command line does, which has no access to the database."""
    current_app.control.broadcast("revoke", arguments={"task_id": [task_id], **options})


def _revoked_before(side: Side, revoke: Callable[..., None]) -> Any:
    result = side.write.apply_async((side.notes,), countdown=5)
    until(lambda: side.kind == "durable" or _reserved(result.id), within=WITHIN)
    revoke(result.id)
    return side.ended(result)


def _reserved(task_id: str) -> bool:
    """Return whether the worker has reserved this plain task for later."""
    return task_id in str(current_app.control.inspect(timeout=10, limit=1).scheduled())


def _running(side: Side) -> Any:
    result = side.wait.delay(side.notes)
    until(side.noted, within=WITHIN)
    return result


def _revoked_while_running(side: Side, revoke: Callable[..., None]) -> Any:
    result = _running(side)
    revoke(result.id)
    Path(f"{side.notes}.released").touch()
    # Celery 5.6 reports a plain task as REVOKED here although it continues; a later version does not.
    states = ("SUCCESS", "REVOKED") if side.kind == "plain" else ("SUCCESS",)
    until(lambda: result.state in states, within=WITHIN)
    return side.noted()


def _terminated(side: Side, revoke: Callable[..., None]) -> Any:
    result = _running(side)
    revoke(result.id, terminate=True)
    return side.ended(result)


def _queried(side: Side) -> Any:
    result = _running(side)
    answers = current_app.control.inspect(timeout=WITHIN, limit=1).query_task(result.id) or {}
    Path(f"{side.notes}.released").touch()
    return [
        (list(answer) == [result.id], answer[result.id][0]) for answer in answers.values() if answer
    ], side.ended(result)


def _caught(result: Any) -> Any:
    try:
        result.get(timeout=WITHIN)
    except (KeyError, celery_usages.Refused) as error:
        return type(error).__name__, error.args
    return "nothing"


def _called_back(side: Side) -> Any:
    result, received = AsyncResult(side.add.delay(1, 2).id), list[Any]()
    result.get(
        callback=lambda task_id, value: received.append((task_id == result.id, value)),
        timeout=WITHIN,
    )
    result = AsyncResult(side.add.delay(3, 4).id)
    result.get(
        WITHIN,
        True,
        0.1,
        True,
        True,
        lambda task_id, value: received.append((task_id == result.id, value)),
    )
    return received


def _request(side: Side, times: int) -> Any:
    result = side.request_values.apply_async(
        (side.notes,), {"times": times}, headers={"x-tenant": "a"}
    )
    request = result.get(timeout=WITHIN)
    ids = [request.pop("id"), request.pop("root_id"), request.pop("current"), *side.noted()]
    request["args"] = request["args"] == [side.notes]
    return ids == [result.id] * (times + 4), request


def _state(side: Side) -> Any:
    result = AsyncResult(side.report_state.delay(side.notes).id)
    until(lambda: result.state == "PROGRESS", within=WITHIN)
    info = result.info
    Path(f"{side.notes}.released").touch()
    return info, result.get(timeout=WITHIN), result.state


def _hooks(side: Side, *, runs: int, fail: bool) -> Any:
    result = side.hooked.delay(side.notes, 7, fail=fail)
    state, notes = side.ended(result, runs=runs)
    return state, [line.replace(result.id, "<id>") for line in notes]


def _refused_inside(side: Side) -> Any:
    result = side.wait_for_another.delay(side.add.name)
    return side.ended(result), "Never call result.get() within a task!" in str(result.traceback)


USAGES: dict[str, UsageCase] = {
    "a result": UsageCase(lambda side: side.add.delay(1, 2).get(timeout=WITHIN)),
    # Calls
    "apply_async": UsageCase(
        lambda side: side.add.apply_async((1,), {"right": 2}, countdown=0.1).get(timeout=WITHIN)
    ),
    "a signature": UsageCase(lambda side: side.add.s(2).delay(1).get(timeout=WITHIN)),
    "a signature by name": UsageCase(
        lambda side: signature(side.add.name, (1, 2)).delay().get(timeout=WITHIN)
    ),
    "send_task": UsageCase(
        lambda side: current_app.send_task(side.add.name, (1, 2)).get(timeout=WITHIN)
    ),
    "delay_on_commit": UsageCase(
        lambda side: side.ended_notes(side.write.delay_on_commit(side.notes))
    ),
    "apply_async_on_commit": UsageCase(
        lambda side: side.ended_notes(side.write.apply_async_on_commit((side.notes,)))
    ),
    "the last step of a chain": UsageCase(
        lambda s: (celery_usages.add.plain.s(1, 2) | s.add.s(3)).delay().get(timeout=WITHIN)
    ),
    "a chain whose first step fails": UsageCase(
        lambda side: side.raised(
            lambda: (
                (celery_usages.fail.plain.s(side.notes) | side.add.s(1)).delay().get(timeout=WITHIN)
            )
        )
    ),
    "a callback": UsageCase(
        lambda s: s.ended_notes(
            celery_usages.notes_of.plain.apply_async((s.notes,), link=s.write.s())
        )
    ),
    "an errback": UsageCase(
        lambda side: side.raised(
            lambda: celery_usages.add.plain.apply_async((1, 2), link_error=side.add.s(1))
        ),
        instead="InvalidOption",
    ),
    "map": UsageCase(
        lambda side: side.raised(lambda: side.add.map([1]).delay()), instead="InvalidOption"
    ),
    "starmap": UsageCase(
        lambda side: side.raised(lambda: side.add.starmap([[1, 2]]).delay()),
        instead="InvalidOption",
    ),
    "chunks": UsageCase(
        lambda side: side.raised(lambda: side.add.chunks([[1, 2]], 1).delay()),
        instead="InvalidOption",
    ),
    "a group": UsageCase(
        lambda side: side.raised(lambda: group(side.add.s(1, 2), side.add.s(3, 4)).delay()),
        instead="InvalidOption",
    ),
    "the body of a chord": UsageCase(
        lambda side: side.raised(
            lambda: chord([celery_usages.add.plain.s(1, 2)] * 2)(side.add.s(3))
        ),
        instead="InvalidOption",
    ),
    # The id that .delay() returned
    "AsyncResult(id).get()": UsageCase(lambda side: _by_id(side, AsyncResult)),
    "app.AsyncResult(id).get()": UsageCase(lambda side: _by_id(side, current_app.AsyncResult)),
    "task.AsyncResult(id).get()": UsageCase(lambda side: _by_id(side, side.add.AsyncResult)),
    "AsyncResult(id) of an id of the caller's": UsageCase(
        lambda side: _by_id(side, AsyncResult, task_id=str(uuid4()))
    ),
    "ResultSet of results by id": UsageCase(lambda side: _set(side).get(timeout=WITHIN)),
    "AsyncResult(id) of a task that nothing created": UsageCase(
        lambda side: AsyncResult(str(uuid4())).state
    ),
    "what AsyncResult(id) returns of a result": UsageCase(_told),
    "app.control.revoke(id) before the start": UsageCase(
        lambda side: _revoked_before(side, _by_control)
    ),
    "AsyncResult(id).revoke() before the start": UsageCase(
        lambda side: _revoked_before(side, _by_result)
    ),
    "celery control revoke id before the start": UsageCase(
        lambda side: _revoked_before(side, _by_command)
    ),
    "app.control.revoke(id) of a running task": UsageCase(
        lambda side: _revoked_while_running(side, _by_control)
    ),
    "app.control.revoke(id, terminate=True)": UsageCase(
        lambda side: _terminated(side, _by_control)
    ),
    "app.control.terminate(id)": UsageCase(
        lambda side: _terminated(side, lambda i, **_: current_app.control.terminate(i))
    ),
    "celery control revoke id, terminate": UsageCase(lambda side: _terminated(side, _by_command)),
    "celery inspect query_task id": UsageCase(_queried),
    "get() inside of a task": UsageCase(_refused_inside),
    "the exception of get()": UsageCase(
        lambda side: _caught(side.fail_by_autoretry.delay(side.notes, "KeyError"))
    ),
    "the exception of AsyncResult(id).get()": UsageCase(
        lambda side: _caught(AsyncResult(side.fail_by_autoretry.delay(side.notes, "KeyError").id))
    ),
    "an exception of the project's": UsageCase(
        lambda side: _caught(side.fail_by_own_error.delay(402, "card"))
    ),
    "get(callback=...)": UsageCase(_called_back),
    "get(propagate=False)": UsageCase(
        lambda s: repr(
            s.fail_by_autoretry.delay(s.notes, "KeyError").get(timeout=WITHIN, propagate=False)
        )
    ),
    # The call and its request
    "self.request": UsageCase(lambda side: _request(side, 0)),
    "self.request after two retries": UsageCase(lambda side: _request(side, 2)),
    "self.update_state()": UsageCase(_state),
    "expires": UsageCase(
        lambda side: side.ended(side.write.apply_async((side.notes,), countdown=1.5, expires=60))
    ),
    "expires before countdown": UsageCase(
        lambda side: side.raised(
            lambda: side.write.apply_async((side.notes,), countdown=3, expires=1)
        ),
        instead="InvalidOption",
    ),
    "a misspelt option": UsageCase(
        lambda side: side.raised(lambda: side.write.apply_async((side.notes,), countdwn=3)),
        instead="InvalidOption",
    ),
    "self.replace()": UsageCase(
        lambda side: side.ended(side.replace.delay(side.notes)), instead=("FAILURE", ["run"])
    ),
    # Hooks
    "hooks of a success": UsageCase(lambda side: _hooks(side, runs=3, fail=False)),
    "hooks of a failure after a retry": UsageCase(lambda side: _hooks(side, runs=5, fail=True)),
    # Retries
    "an error without any option": UsageCase(
        lambda s: s.ended(s.fail.delay(s.notes)), instead=("FAILURE", ["run"] * 5)
    ),
    "no retry by max_retries=0": UsageCase(lambda side: _retried(side, max_retries=0, countdown=0)),
    "one retry by max_retries=1": UsageCase(
        lambda side: _retried(side, max_retries=1, countdown=0)
    ),
    "six retries by max_retries=6": UsageCase(
        lambda side: _retried(side, max_retries=6, countdown=0)
    ),
    "three retries by default": UsageCase(lambda side: _retried(side, countdown=0)),
    "MaxRetriesExceededError": UsageCase(
        lambda s: s.ended(s.fail_in_an_exhausted_retry.delay(s.notes))
    ),
    "max_retries of the decorator": UsageCase(
        lambda s: s.ended(s.fail_by_retry_once.delay(s.notes))
    ),
    "default_retry_delay": UsageCase(
        lambda s: s.ended(s.fail_by_retry_without_limit.delay(s.notes))
    ),
    "autoretry_for: an error it names": UsageCase(
        lambda s: s.ended(s.fail_by_autoretry.delay(s.notes, "ValueError"))
    ),
    "autoretry_for: another error": UsageCase(
        lambda s: s.ended(s.fail_by_autoretry.delay(s.notes, "KeyError"))
    ),
    "autoretry_for: a subclass": UsageCase(
        lambda s: s.ended(s.fail_by_autoretry_of_most.delay(s.notes, "ValueError"))
    ),
    "dont_autoretry_for": UsageCase(
        lambda s: s.ended(s.fail_by_autoretry_of_most.delay(s.notes, "KeyError"))
    ),
    "max_retries and another error": UsageCase(
        lambda s: s.ended(s.fail_beside_max_retries.delay(s.notes))
    ),
    "default_retry_delay and an error": UsageCase(
        lambda s: s.ended(s.fail_beside_default_retry_delay.delay(s.notes))
    ),
    "options of a class: an error it names": UsageCase(
        lambda s: s.ended(s.fail_by_the_options_of_a_class.delay(s.notes, "ValueError"))
    ),
    "options of a class: another error": UsageCase(
        lambda s: s.ended(s.fail_by_the_options_of_a_class.delay(s.notes, "KeyError"))
    ),
    "throw=False": UsageCase(lambda s: s.ended(s.retry_and_go_on.delay(s.notes), runs=3)),
}
