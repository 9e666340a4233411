"""The worlds in which the protocol is checked, and its mutants: those that break it and those that
another guard covers.

Each world adds its own faults to the core ones, because the product of all faults is too large for
a test. Mutants cannot show anything about time (how late, how often), about more than one task
(dependents, limits, uniqueness, the leader's term), or about the effects of a body outside the
database.
"""

from __future__ import annotations

from tests.unit.protocol.checker import DEAD_END
from tests.unit.protocol.states import Case, Rules, World
from tests.unit.protocol.writes import (
    BODY_WITHOUT_START,
    BUDGET,
    ENDED_TWICE,
    FENCED_OWN_ENDING,
    FOREIGN_ENDING,
    LETTERS,
    OUTAGE_LOST_A_RUN,
    PARENT_LOST_A_LIVE_RUN,
    STARTED_TWICE,
)

DELIVERY = World(takes=True, doubles=True, doubts=True)
BATCHES = World(takes=True, undoes=True, doubles=True, doubts=True)
OPERATOR = World(takes=True, doubles=True, doubts=True, operator=True)
FEW_OPERATOR = World(operator=True)
OUTAGE = World(takes=True, doubles=True, doubts=True, outages=True)
PARENTS = World(doubles=True, doubts=True, parents=True)
FEW_PARENTS = World(parents=True)
FAILOVER = World(failover=True, trusts_commits=False)
FORGETFUL = World(failover=True)
EVERYTHING = World(
    takes=True, undoes=True, doubles=True, doubts=True, operator=True, outages=True, parents=True
)

PROTOCOL = (
    Case("delivery: messages lost, duplicated and late, lost replies", DELIVERY),
    Case("batches: starts are undone", BATCHES),
    Case("operator: cancel, expire, replay, force_complete", OPERATOR),
    Case("outage: the database goes away and comes back", OUTAGE),
    Case("parents: lost children are reported", PARENTS),
    Case("fail-over that forgets a commit: owner's endings only", FAILOVER),
)

_NO_EPOCHS = Rules(ending_checks_run_id=False, lose_raises_epoch=False, take_raises_epoch=False)

CAUGHT = {
    Case(
        "ending without a guard",
        DELIVERY,
        Rules(ending_checks_status=False, ending_checks_epoch=False, ending_checks_run_id=False),
    ): ENDED_TWICE,
    Case(
        "ending guarded by status only",
        DELIVERY,
        Rules(ending_checks_epoch=False, ending_checks_run_id=False),
    ): FOREIGN_ENDING,
    Case(
        "ending without run_id, fail-over", FAILOVER, Rules(ending_checks_run_id=False)
    ): FOREIGN_ENDING,
    Case(
        "ending without run_id, lose and take keep the epoch", DELIVERY, _NO_EPOCHS
    ): FOREIGN_ENDING,
    Case(
        "ending's lost reply never read back", DELIVERY, Rules(ending_reads_back="nothing")
    ): FENCED_OWN_ENDING,
    Case(
        "ending's lost reply read from the task row", DELIVERY, Rules(ending_reads_back="row")
    ): FENCED_OWN_ENDING,
    Case("run never leaves the heartbeat", DELIVERY, Rules(leaves_heartbeat=False)): DEAD_END,
    Case("class does not record the ending", DELIVERY, Rules(class_tells=False)): DEAD_END,
    Case("no republish", DELIVERY, Rules(rings_again=False)): DEAD_END,
    Case(
        "publish before commit, no republish",
        DELIVERY,
        Rules(publish_after_commit=False, rings_again=False),
    ): DEAD_END,
    Case(
        "start without a guard",
        DELIVERY,
        Rules(start_checks_status=False, start_checks_epoch=False),
    ): STARTED_TWICE,
    Case("take without a guard", DELIVERY, Rules(take_is_guarded=False)): STARTED_TWICE,
    Case(
        "start's lost reply taken as accepted", DELIVERY, Rules(start_reads_back="nothing")
    ): BODY_WITHOUT_START,
    Case(
        "start's lost reply read back by node", DELIVERY, Rules(start_reads_back="node")
    ): BODY_WITHOUT_START,
    Case("attempt counted at the end", DELIVERY, Rules(counts_at_start=False)): STARTED_TWICE,
    Case("a loss costs no crash", DELIVERY, Rules(lose_counts_crash=False)): BUDGET,
    Case("no grace after an outage", OUTAGE, Rules(grace=False)): OUTAGE_LOST_A_RUN,
    Case(
        "self-fencing stops the heartbeat", OUTAGE, Rules(self_fence_keeps_beating=False)
    ): OUTAGE_LOST_A_RUN,
    Case(
        "dead letter in a separate transaction", DELIVERY, Rules(letter_with_failure=False)
    ): LETTERS,
    Case("retry forgets a cancel request", FEW_OPERATOR, Rules(retry_heeds_cancel=False)): DEAD_END,
    Case(
        "replay keeps the cancel request", FEW_OPERATOR, Rules(replay_clears_cancel=False)
    ): DEAD_END,
    Case(
        "parent guarded by epoch and node only", FEW_PARENTS, Rules(parent_checks_process=False)
    ): PARENT_LOST_A_LIVE_RUN,
    Case("no mutant: fail-over, starts and endings judged too", FORGETFUL): ENDED_TWICE,
}

COVERED = {
    Case(
        "publish before commit", DELIVERY, Rules(publish_after_commit=False)
    ): "republishing repairs it, later",
    Case(
        "start without status", DELIVERY, Rules(start_checks_status=False)
    ): "an epoch is QUEUED only once",
    Case(
        "start without epoch", DELIVERY, Rules(start_checks_epoch=False)
    ): "the status accepts one message; the epoch refuses old messages in another queue's workers",
    Case(
        "ending without status", DELIVERY, Rules(ending_checks_status=False)
    ): "epoch and run_id suffice",
    Case(
        "ending without epoch", DELIVERY, Rules(ending_checks_epoch=False)
    ): "status and run_id suffice",
    Case(
        "ending without run_id", DELIVERY, Rules(ending_checks_run_id=False)
    ): "the epoch suffices until a fail-over",
    Case(
        "lose keeps the epoch", DELIVERY, Rules(lose_raises_epoch=False)
    ): "the next claim or take raises it, and run_id differs",
    Case("republish raises the epoch", DELIVERY, Rules(republish_keeps_epoch=False)): (
        "a message may still arrive in time; that a queue slower than its republish delay starves is"
        " visible only with a clock"
    ),
    Case("signal does not record", DELIVERY, Rules(signal_tells=False)): "the lease expires later",
    Case(
        "second recording is not free", DELIVERY, Rules(told_flag=False)
    ): "the guard refuses it; it costs a statement",
    Case(
        "parent does not record", FEW_PARENTS, Rules(parent_tells=False)
    ): "the lease expires later",
    Case(
        "parent guarded by epoch and node only, live runs not judged",
        World(parents=True, judges_parents=False),
        Rules(parent_checks_process=False),
    ): "the running task is fenced and retried: it costs a crash and violates no guarantee",
}
