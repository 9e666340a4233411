"""A failure of a property test that does not occur again is shown."""

import pytest
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.stateful import run_machine


class FailsOnce(RuleBasedStateMachine):
    """Fails in the first step of its life only."""

    steps = 0

    @rule()
    def step(self) -> None:
        """Fail the first time."""
        FailsOnce.steps += 1
        if FailsOnce.steps == 1:
            raise ValueError("two readings of the clock differed")


def test_a_failure_that_does_not_occur_again_is_added_to_the_message() -> None:
    with pytest.raises(Flaky) as caught:
        run_machine(FailsOnce, examples=5, steps=5)
    assert "two readings of the clock differed" in "".join(caught.value.__notes__)
