"""All faults, and their combination."""

from __future__ import annotations

from tests.chaos.faults import brokers, database, due_index, processes, receiver
from tests.chaos.faults.registry import FAULTS, Fault, fault
from tests.chaos.plan import Plan
from tests.chaos.stage import Stage

__all__ = ["FAULTS", "brokers", "database", "due_index", "for_broker", "processes", "receiver"]
BRIEF = (
    "broker-flushed",
    "broker-cut",
    "database-unheard",
    "leader-killed",
    "worker-killed",
    "sessions-ended",
    "database-restarted",
    "two-leaders",
    "leader-frozen",
    "poison",
)


@fault(26, "everything", private=True)
def everything(stage: Stage) -> None:
    """Messages are duplicated and delayed, replies are lost and children die, while four other
    faults follow one another.
    """
    copies = '{"copies": 2, "delay": 2}'
    with database.replies_lost(stage, 0.05, 0.002), stage.with_orders(copies):
        for name in stage.random.sample(BRIEF, 4):
            stage.notes[f"{name}, amid everything"] += 1
            processes.kill_a_child(stage)
            FAULTS[name].strike(stage)


def for_campaign(plan: Plan) -> list[Fault]:
    """Return the faults that may be drawn for a campaign, in the order of their numbers."""
    assert plan.configuration is not None
    pool = plan.configuration.pool
    return [
        one
        for one in for_broker(plan.broker, private=plan.private)
        if one.campaign
        and plan.database in one.databases
        and (not one.pools or pool in one.pools)
        and (not plan.faults or one.name in plan.faults)
    ]


def for_broker(broker: str, *, private: bool = True) -> list[Fault]:
    """Return the faults that apply to a broker, in the order of their numbers, the combination
    last.
    """
    known = [
        fault
        for fault in FAULTS.values()
        if broker in fault.brokers and (private or not fault.private)
    ]
    return sorted(known, key=lambda fault: (fault.name == "everything", fault.number))
