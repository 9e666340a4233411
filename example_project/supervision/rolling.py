"""A rolling restart under load: every scheduler and worker is stopped and replaced in turn,
repeatedly.
"""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from billing import schedules

from django_durable_tasks.models import RecurringTask, Task, TaskExecutionLog, WorkflowRun
from supervision import fires
from supervision.platform import Platform
from supervision.processes import STOPPING, Program

OPEN = ("BLOCKED", "PENDING", "QUEUED", "RUNNING")
DRAINING = 180.0
SETTLED = 30.0


@dataclass(frozen=True)
class Figures:
    """The result, from the database; restarts by SIGTERM and by SIGKILL."""

    jobs: int
    nodes: int
    terminated: int
    killed: int
    expected: int
    seen: int
    missing: list[str]
    doubled: list[str]
    tasks: int
    left_open: int
    attempts_lost: int
    fenced: int
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing was missed, duplicated, left behind, or stopped by force."""
        same = self.expected == self.seen and not self.left_open
        return same and not (self.missing or self.doubled or self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {**asdict(self), "good": self.good}


class Restarts:
    """Restarts each node in turn, by SIGTERM and SIGKILL alternately."""

    def __init__(self, platform: Platform, log: Callable[[str], None]) -> None:
        self.platform, self.log = platform, log
        self.nodes: list[Program] = []
        self.ended = {"SIGTERM": 0, "SIGKILL": 0}

    def start(self, each: int) -> None:
        """Start ``each`` schedulers and ``each`` workers; raises NotStarted and Interrupted."""
        for _ in range(each):
            self.nodes += [self.platform.add_scheduler(), self.platform.add_worker()]
        for node in self.nodes:
            self.platform.wait_ready(node)

    def play(self, rounds: int) -> None:
        """Restart every node ``rounds`` times while the jobs fire, then wait until all tasks have
        ended.
        """
        jobs = schedules.sync()
        self.log(
            f"{len(jobs)} recurring jobs begin; {len(self.nodes)} nodes are restarted {rounds}"
            " times each."
        )
        self._wait_for_new_tasks()
        for turn, place in itertools.product(range(rounds), range(len(self.nodes))):
            self._restart(place, gently=(turn + place // 2) % 2 == 0)
        self._wait_for_new_tasks()
        for job in RecurringTask.objects.active():
            job.pause("the restarts are over", by="rolling restart")
        self.platform.patience.until(self._drained, DRAINING)
        self.platform.problems += [
            f"{node.name} ended by itself" for node in self.platform.fallen() if node in self.nodes
        ]

    def _restart(self, place: int, *, gently: bool) -> None:
        node = self.nodes[place]
        if gently:
            node.ask_to_stop()
            if not self.platform.patience.until(lambda: not node.alive, STOPPING):
                self.platform.problems.append(f"{node.name} did not stop and was killed")
        node.kill()
        self.ended["SIGTERM" if gently else "SIGKILL"] += 1
        fresh = (
            self.platform.add_worker()
            if node.name.startswith("worker")
            else self.platform.add_scheduler()
        )
        self.platform.wait_ready(fresh)
        self.nodes[place] = fresh
        self.log(
            f"{node.name} was {'stopped' if gently else 'killed'}, {fresh.name} stands in its"
            " place."
        )

    def _wait_for_new_tasks(self) -> None:
        """Wait until new tasks are created, which shows that the jobs fire."""
        before = Task.objects.count()
        self.platform.patience.until(
            lambda: Task.objects.count() > before + len(self.nodes), SETTLED
        )

    def _drained(self) -> bool:
        return not (
            Task.objects.filter(status__in=OPEN).exists() or WorkflowRun.objects.open().exists()
        )

    def figures(self) -> Figures:
        """Read the result from the database."""
        found, logs = fires.read(None), TaskExecutionLog.objects
        seen_fires = found.fates.total()
        return Figures(
            jobs=found.jobs,
            nodes=len(self.nodes),
            terminated=self.ended["SIGTERM"],
            killed=self.ended["SIGKILL"],
            expected=found.expected,
            seen=seen_fires,
            missing=found.missing,
            doubled=found.doubled,
            tasks=Task.objects.count(),
            left_open=Task.objects.filter(status__in=OPEN).count(),
            attempts_lost=logs.filter(status="LOST").count(),
            fenced=logs.filter(status="FENCED").count(),
            problems=self.platform.problems,
        )
