"""The demo: half a minute of business, during which two processes are killed, and a report of the
result.
"""

import http.client
import signal
import time
import uuid
from datetime import datetime

from billing import schedules
from billing.models import Card, Customer, Invoice
from billing.tasks import charge_payment
from customers.visits import Visits
from django.db.models import Count
from django.utils import timezone

from django_durable_tasks.models import (
    DeadLetter,
    OccurrenceRecord,
    RecurringTask,
    Task,
    WorkflowRun,
)
from supervision.platform import Platform
from supervision.processes import Program
from supervision.screen import Screen
from supervision.workload import Workload

STEPS, PACE, TICK = 44, 0.5, 0.1
KILL_WORKER_AT, KILL_LEADER_AT = 14, 24
DRAINING = 240.0
OPEN = ("BLOCKED", "PENDING", "QUEUED", "RUNNING")


class Demonstration:
    """Runs the demo on a started platform, and records what cannot be read from the database."""

    def __init__(self, platform: Platform, screen: Screen) -> None:
        self.platform, self.screen, self.workload = platform, screen, Workload()
        self.killed: list[str] = []
        self.killed_nodes: list[uuid.UUID] = []
        self.takeover: float | None = None
        self.leaderless: tuple[datetime, datetime] | None = None
        self.replayed, self.site_served = 0, False
        self._term, self._leader_killed_at = 0, timezone.now()
        self._worker_killed = self._leader_killed = False

    def play(self) -> None:
        """Do the business, kill, replace and replay, then wait until all tasks have ended; raises
        Interrupted.
        """
        jobs = schedules.sync()
        self.screen.write_line(
            f"{len(jobs)} recurring jobs begin, each every two to seven seconds."
        )
        self.visits = Visits(f"{self.platform.address}api/v1")
        self.screen.write_line("Three customers use the HTTP API, each with a key of its own.")
        for step in range(STEPS):
            self.workload.step(step)
            until = time.monotonic() + PACE
            while time.monotonic() < until:
                self._watch(step)
                self.visits.step()
                self.show((step + 1) / STEPS)
                self.platform.patience.pause(TICK)
        for job in RecurringTask.objects.active():
            job.pause("business is over", by="demo")
        self.screen.write_line("Business is over; waiting until the last task has ended.")
        self.platform.patience.until(self._drained, DRAINING)
        self.screen.close()
        self.visits.collect()
        self.site_served = self._site_answers()
        self.platform.problems += [
            f"{program.name} ended by itself" for program in self.platform.fallen()
        ]

    def _watch(self, step: int) -> None:
        if step >= KILL_WORKER_AT and not self._worker_killed:
            self._kill_worker()
        if step >= KILL_LEADER_AT and not self._leader_killed:
            self._kill_leader()
        if self._leader_killed and self.takeover is None:
            self._see_takeover()
        if self._worker_killed and not self.replayed:
            self._replay_one()

    def _drained(self) -> bool:
        self._watch(STEPS)
        self.visits.step()
        self.show(1.0)
        happened = self.replayed and self._worker_killed and self.takeover is not None
        busy = not (happened and self.visits.done)
        waiting = (
            Task.objects.filter(status__in=OPEN).exists() or WorkflowRun.objects.open().exists()
        )
        return not (busy or waiting)

    def _kill_worker(self) -> None:
        victim = self.platform.busy_worker()
        if victim is None:
            return
        # A suspended process cannot end its runs between the check and the kill.
        victim.signal_group(signal.SIGSTOP)
        runs = self.platform.runs_of(victim)
        if not runs:
            victim.signal_group(signal.SIGCONT)
            return
        self._kill(victim)
        self._worker_killed = True
        self._record_kill(victim, f"which had {runs} in progress")
        self.screen.write_line(f"{self.platform.add_worker().name} was started in its place.")

    def _kill_leader(self) -> None:
        victim, term = self.platform.leader()
        if victim is None:
            return
        self._kill(victim)
        self._leader_killed, self._leader_killed_at, self._term = True, timezone.now(), term
        self._record_kill(victim, f"the leader of term {term}")

    def _kill(self, victim: Program) -> None:
        node = self.platform.node_of(victim)
        self.killed_nodes += [node.pk] if node else []
        victim.kill()

    def _record_kill(self, victim: Program, what: str) -> None:
        self.killed.append(f"{victim.name} (process group {victim.pid}), {what}")
        self.screen.write_line(f"SIGKILL to {victim.name}, {what}.")

    def _see_takeover(self) -> None:
        leader, term = self.platform.leader()
        if leader is None or term == self._term:
            return
        self.leaderless = self._leader_killed_at, timezone.now()
        self.takeover = (self.leaderless[1] - self.leaderless[0]).total_seconds()
        self.screen.write_line(
            f"{leader.name} took over after {self.takeover:.1f} s, as the leader of term {term}."
        )
        self.screen.write_line(f"{self.platform.add_scheduler().name} was started in its place.")

    def _replay_one(self) -> None:
        """Do what an operator does in the admin: correct the cause, then replay the dead letter."""
        payments = DeadLetter.objects.open().filter(task__name=charge_payment.name)
        letter = payments.select_related("task").order_by("pk").first()
        if letter is None:
            return
        invoice = Invoice.objects.get(pk=letter.task.args[0])
        Customer.objects.filter(subscriptions=invoice.subscription_id).update(card=Card.GOOD)
        DeadLetter.objects.filter(pk=letter.pk).replay(
            by="demo", reason="the customer gave a new card"
        )
        self.replayed += 1
        self.screen.write_line(
            f"A dead letter was replayed: {letter.error_message.strip()} for {invoice}, new card."
        )

    def show(self, share: float) -> None:
        """Draw the present state."""
        if self.screen.is_due():
            self.screen.show(share, table(self.platform))

    def _site_answers(self) -> bool:
        """Return whether the admin's login page responds."""
        site = http.client.HTTPConnection("127.0.0.1", self.platform.port, timeout=10)
        try:
            site.request("GET", "/admin/login/")
            return site.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            site.close()


def table(platform: Platform) -> list[str]:
    """Return the content of the dynamic part of the screen."""
    number = dict(Task.objects.order_by().values_list("status").annotate(Count("pk")))
    retrying = Task.objects.retrying().count()
    leader, term = platform.leader()
    alive = [
        f"{program.name}{'*' if program is leader else ''}"
        for program in platform.programs
        if program.alive
    ]
    tasks = (
        f"tasks {sum(number.values())}: {number.get('SUCCESS', 0)} done, {number.get('RUNNING', 0)}"
        f" running, {number.get('QUEUED', 0)} queued, {number.get('PENDING', 0) - retrying}"
        f" waiting, {retrying} retrying, {DeadLetter.objects.open().count()} dead letters,"
        f" {OccurrenceRecord.objects.count()} recurring fires"
    )
    return [tasks, f"{', '.join(sorted(alive))}   * leads, term {term}"]
