"""For property tests: drawn values that depend on earlier draws only, and failures that can be
reproduced.

Hypothesis replays an example by its draws. If a strategy or a precondition depends on ids, the
order of rows or the time, a replay draws something else, and Hypothesis raises
FlakyStrategyDefinition instead of showing the error.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from django_durable_tasks.task_values import uuid7
from tests.repetitions import repetitions

ROOT = Path(__file__).resolve().parent.parent


def use_own_examples() -> None:
    """Save examples per database and broker, and print with each failure how to reproduce it.

    An example that fails on one database may draw different values on another.
    """
    place = f"{os.environ['TEST_DATABASE']}-{os.environ['TEST_BROKER']}"
    examples = DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "examples" / place)
    settings.register_profile(
        "durable",
        database=examples,
        print_blob=True,
        derandomize=False,
        max_examples=repetitions(100),
    )
    settings.load_profile("durable")


def applies_if(
    condition: Callable[[Any], Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a rule do nothing unless `condition(machine)` holds.

    Used in place of Hypothesis's precondition, which would let the state of the database choose
    what is drawn next.
    """

    def decorate(act: Callable[..., None]) -> Callable[..., None]:
        @wraps(act)
        def acted(machine: Any, **drawn: Any) -> None:
            if condition(machine):
                act(machine, **drawn)

        return acted

    return decorate


@contextmanager
def ids_in_creation_order() -> Iterator[None]:
    """Make ids of one millisecond increase with their creation, so that two replays of an example
    order their rows alike.
    """
    numbers = itertools.count(1)

    def ordered(unix_ms: int, randomness: bytes) -> Any:
        return uuid7(unix_ms, next(numbers).to_bytes(len(randomness), "big"))

    with (
        mock.patch("django_durable_tasks.task_values.uuid7", ordered),
        mock.patch("django_durable_tasks.models.schedules.uuid7", ordered),
    ):
        yield


def run_machine(machine: type[RuleBasedStateMachine], *, examples: int, steps: int) -> None:
    """Run a state machine without shrinking: each step is a transaction, and the trace of few tasks
    can be read as it is.

    If a failure does not occur again in the replay, Hypothesis raises FlakyStrategyDefinition or
    another Flaky and drops it, because the replay draws more than the first run. Then the failure is
    added to the message: its cause depends on time, order or ids, or it left a broken transaction.
    """
    failures: list[str] = []

    class Recorded(machine):  # type: ignore[misc, valid-type]
        def teardown(self) -> None:
            if isinstance(error := sys.exc_info()[1], Exception):
                failures.append("".join(traceback.format_exception(error)))
            super().teardown()

    try:
        with ids_in_creation_order():
            run_state_machine_as_test(
                Recorded,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    phases=[Phase.explicit, Phase.reuse, Phase.generate],
                ),
            )
    except Flaky as flaky:
        for failure in failures[:1]:  # later ones may only follow from the state that it left
            flaky.add_note(f"The failure that did not occur again:\n{failure}")
        raise
