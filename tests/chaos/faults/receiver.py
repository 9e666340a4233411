"""A fault of the server that receives callbacks and notifications."""

from __future__ import annotations

from tests.chaos.faults.registry import BESIDE_FILES, fault
from tests.chaos.stage import Stage


@fault(32, "receiver-frozen", BESIDE_FILES)
def freeze_the_receiver(stage: Stage) -> None:
    """The receiver of callbacks and notifications hangs."""
    assert stage.receiver is not None
    stage.receiver.freeze()
    try:
        stage.linger(15)
    finally:
        stage.receiver.thaw()
