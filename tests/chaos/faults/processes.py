"""Faults of processes: they die, freeze, are replaced, or have a wrong clock."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from datetime import datetime

from django.db.models import F

from django_durable_tasks.models import Node, SchedulerLease, TaskExecutionLog
from django_durable_tasks.store.clock import after
from tests.chaos import bodies
from tests.chaos.faults.registry import ANY_BROKER, ANY_DATABASE, BESIDE_FILES, fault
from tests.chaos.servers import administrator
from tests.chaos.stage import Stage, children, query
from tests.processes.cluster import Program
from tests.waiting import until

READY = 60


@fault(
    1, "child-killed", brokers=ANY_BROKER, databases=ANY_DATABASE, campaign=True, pools=("prefork",)
)
def kill_children(stage: Stage) -> None:
    """A child of a worker is killed every second."""
    stage.repeatedly(8, 1.0, lambda: kill_a_child(stage))


def kill_a_child(stage: Stage) -> None:
    """Kill one child of one worker."""
    found = [child for worker in stage.plain_workers() for child in children(worker)]
    if found:
        with suppress(ProcessLookupError):
            os.kill(stage.random.choice(found), signal.SIGKILL)
        stage.notes["kills"] += 1


@fault(2, "worker-killed", brokers=ANY_BROKER, databases=ANY_DATABASE, campaign=True)
def kill_workers(stage: Stage) -> None:
    """A worker is killed with its children and replaced, three times."""
    for _ in range(stage.times(3)):
        worker = stage.random.choice(stage.plain_workers() or stage.workers)
        stage.kill(worker)
        _ready(stage.replace(worker))


@fault(3, "all-workers-killed", brokers=ANY_BROKER, databases=ANY_DATABASE, campaign=True)
def kill_all_workers(stage: Stage) -> None:
    """Every worker is killed at the same moment and replaced, twice."""
    for _ in range(stage.times(2)):
        before = list(stage.workers)
        for worker in before:
            stage.kill(worker)
        for worker in [stage.replace(worker) for worker in before]:
            _ready(worker)


@fault(4, "worker-frozen", BESIDE_FILES)
def freeze_a_worker(stage: Stage) -> None:
    """A worker is frozen during a task for longer than its lease, and continues when its tasks have other owners."""
    worker = stage.random.choice(
        [worker for worker in stage.workers if "threads" in worker.arguments]
    )
    tasks = [stage.enqueue("long", bodies.work, 1.5, priority=9) for _ in range(12)]
    logged = TaskExecutionLog.objects.filter(task_id__in=tasks)

    def at_work() -> bool:
        node = worker.node()
        return node is not None and tasks_of(node, tasks) > 0

    def lost() -> bool:
        return logged.filter(status="LOST").exists()

    def fenced() -> bool:
        return logged.filter(status="FENCED").exists()

    until(lambda: query(at_work), within=READY, message="the worker is at work")
    node = worker.node()
    worker.freeze()

    def all_ended() -> bool:
        return node is None or tasks_of(node, tasks) == 0

    try:
        # A node may be declared dead before the leases of its runs have expired.
        until(
            lambda: query(lost) or query(all_ended),
            within=READY,
            message="the runs of the frozen worker are lost",
        )
        stage.linger(3)
    finally:
        worker.thaw()
    with suppress(AssertionError):  # the figures at the end say if nothing was fenced
        until(lambda: query(fenced), within=20, message="the late ending is refused")
    stage.linger(3)


def tasks_of(node: Node, tasks: list[str]) -> int:
    """Count which of these tasks a node runs."""
    from django_durable_tasks.models import Task

    number: int = Task.objects.running().filter(pk__in=tasks, node=node.pk).count()
    return number


@fault(5, "leader-killed", brokers=ANY_BROKER, databases=ANY_DATABASE, campaign=True)
def kill_leaders(stage: Stage) -> None:
    """The leader is killed and replaced, three times."""
    for _ in range(stage.times(3)):
        if leader := stage.leader():
            stage.kill(leader)
            _ready(stage.scheduler())


@fault(6, "leader-frozen", BESIDE_FILES)
def freeze_the_leader(stage: Stage) -> None:
    """The leader is frozen for longer than its lease, if possible inside a transaction, and continues
    when another one leads.
    """
    leader = stage.leader()
    if leader is None:
        return
    try:
        until(lambda: _frozen_in_a_transaction(stage, leader), within=6)
        stage.notes["leaders frozen inside of a transaction"] += 1
    except AssertionError:
        leader.freeze()
    try:
        stage.linger(8)
    finally:
        leader.thaw()
    stage.linger(2)


def _frozen_in_a_transaction(stage: Stage, leader: Program) -> bool:
    """Freeze the leader, and let it continue unless the database shows that it stopped inside a
    transaction.
    """
    leader.freeze()
    with administrator(stage.database_url) as session:
        found = session.execute(
            "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND state LIKE 'idle in"
            " transaction%%'",
            [f"chaos-{stage.roles[leader.name]}"],
        ).fetchone()
    if found is None:
        leader.thaw()
    return found is not None


@fault(7, "leader-terminated", brokers=ANY_BROKER, databases=ANY_DATABASE, campaign=True)
def terminate_leaders(stage: Stage) -> None:
    """The leader receives SIGTERM and is replaced, three times."""
    for _ in range(stage.times(3)):
        if leader := stage.leader():
            _end(stage, leader)
            _ready(stage.scheduler())


@fault(8, "two-leaders", BESIDE_FILES)
def make_two_leaders(stage: Stage) -> None:
    """The lease is taken from the leader every second, so that two schedulers act as leader."""

    def take() -> None:
        leases = SchedulerLease.objects.filter(holder__isnull=False)
        query(lambda: leases.update(expires_at=after(-1), term=F("term")))

    stage.repeatedly(8, 1.0, take)


@fault(9, "wrong-clocks", BESIDE_FILES)
def shift_clocks(stage: Stage) -> None:
    """The clocks of all schedulers and workers are five minutes behind or ahead."""
    before = [*stage.schedulers, *stage.workers]
    late, early = stage.shifted(-300), stage.shifted(+300)
    shifted = [stage.scheduler(**late), stage.scheduler(**early)]
    shifted += [stage.worker("prefork", 2, **clock) for clock in (late, early)]
    for program in shifted:
        _ready(program)
    for program in before:
        stage.kill(program)
    stage.notes["nodes whose clock was wrong"] += sum(map(_has_a_wrong_clock, shifted))
    stage.linger(12)
    _cluster(stage)
    for program in shifted:
        stage.kill(program)


@fault(24, "rolling-deploy", brokers=ANY_BROKER, databases=ANY_DATABASE, campaign=True)
def deploy(stage: Stage) -> None:
    """Every scheduler and worker is replaced in turn, by SIGTERM."""
    for program in list(stage.schedulers):
        _ready(stage.scheduler())
        _end(stage, program)
    for program in list(stage.workers):
        _ready(stage.replace(program))
        _end(stage, program)


@fault(25, "poison", brokers=ANY_BROKER, databases=ANY_DATABASE, campaign=True, pools=("prefork",))
def poison(stage: Stage) -> None:
    """Bodies end their process: os._exit, a segmentation fault, an abort; each gives up after its
    second crash.
    """
    for how in ("exit", "SIGSEGV", "memory"):
        stage.enqueue("poison", bodies.poison, how)
    stage.linger(8)


def _has_a_wrong_clock(program: Program) -> bool:
    """Return whether the process itself reports the shifted clock."""
    offset = re.search(r"chaos clock (\S+)", program.output())
    return (
        offset is not None
        and abs(datetime.fromisoformat(offset[1]).timestamp() - time.time()) > 200
    )


def _cluster(stage: Stage) -> None:
    for program in (stage.scheduler(), stage.scheduler(), *stage.start_workers()):
        _ready(program)


def _end(stage: Stage, program: Program) -> None:
    """Let a process end. One that does not is killed, as a supervisor would do."""
    program.process.send_signal(signal.SIGTERM)
    try:
        until(lambda: not program.alive(), within=15)
    except AssertionError:
        stage.notes["killed after SIGTERM"] += 1
    program.kill()
    stage.forget(program)


def _ready(program: Program) -> None:
    """Wait until it has registered. Another fault may delay that, and the next one continues all
    the same.
    """

    def registered() -> bool:
        return not program.alive() or query(program.node) is not None

    until(registered, within=READY, message=f"{program.name} is ready:\n{program.output()[-2000:]}")
