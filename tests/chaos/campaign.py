"""The acts of a campaign: a backlog before the first worker, a calm period under load, then faults
with a calm period after each, a first worker for a queue that had none, and the old release again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.db.models import Count, Sum

from django_durable_tasks.models import RecurringTask, Task
from tests.chaos import bodies
from tests.chaos.faults.catalogue import for_campaign
from tests.chaos.figures import Window
from tests.chaos.invariants.idle import IDLE, errors_of_batches, late_beats
from tests.chaos.records import Interval, Limit, Supervision
from tests.chaos.stage import BEAT, Stage, query
from tests.processes.rows import purge
from tests.waiting import until

CALM_PART = 0.46
"""Which part of a campaign passes before the first fault. A message that is published again after 2,
4, 8, ... or after 15, 30, ... seconds has been published shortly before, and the next one is minutes
away.
"""
# Seconds of calm that are judged after the guaranteed time of fail-over: two and a half times what
# a stall must last to be reported.
JUDGED = 2.5 * IDLE
UNSERVED_IN_BATCHES = 50
# The longest function (90 s), after its run has been lost for a lease (60 s) and a node (20 s).
WITHOUT_PROGRESS = 200.0
# Seconds for the rest of the load on a machine that other programs use too.
LONGEST_END = 1_200.0


class Campaign:
    """The acts of one campaign. ``say`` prints its progress."""

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        assert stage.plan.configuration is not None
        self.stage, self.say, self.drawn = stage, say, stage.plan.configuration
        self.windows, self.backlog = list[Window](), list[str]()
        self.backlog_messages = 0.0
        self.random = stage.random
        self.unserved = f"{settings.CELERY_TASK_DEFAULT_QUEUE}-unserved"

    def play(self, declare: Callable[[], list[RecurringTask]]) -> list[RecurringTask]:
        """Run all acts until the load has stopped. Returns the schedules."""
        stage, plan = self.stage, self.stage.plan
        began = time.monotonic()
        self.say(self.drawn.in_words())
        stage.scheduler().ready()
        self.create_rows()
        stage.linger(self.drawn.alone)
        for program in [stage.scheduler(), *stage.start_workers()]:
            program.ready()
        schedules = declare()
        stage.load()
        self.say("load, no faults")
        self.calm(began + CALM_PART * plan.seconds - time.monotonic(), "before")
        self.count_messages()
        acts = [self.serve_the_unserved, *self.faults()]
        while time.monotonic() < began + plan.seconds:
            acts.pop(0)()
            self.calm(plan.grace + JUDGED * (0.4 if self.drawn.short else 1.0), "calm")
            acts = acts or self.faults()
        self.say("quiet: the load stops, schedules are paused, the old release comes back")
        self.stop_the_load()
        self.bring_the_old_release_back()
        return schedules

    # Before the first worker ----------------------------------------------------------------------

    def create_rows(self) -> None:
        """Create the backlog, the tasks whose function was removed, and those that no worker
        serves.
        """
        drawn = self.drawn
        if drawn.published_first:
            calls = (bodies.work.delay(drawn.backlog_seconds).id for _ in range(drawn.backlog))
            self.backlog = self.book("backlog", calls)
        elif drawn.backlog:
            rows = bodies.work.schedule_many([(drawn.backlog_seconds,)] * drawn.backlog)
            self.backlog = self.book("backlog", rows)
        if drawn.removed:
            rows = bodies.removed.using(priority=9).schedule_many([()] * drawn.removed)
            self.book("removed", rows)
        if drawn.unserved:
            many = bodies.work.using(queue=self.unserved).schedule_many
            self.book("unserved", many([(0.0,)] * drawn.unserved))
            batched = bodies.work_in_batches.using(queue=self.unserved).schedule_many
            self.book("unserved", batched([()] * UNSERVED_IN_BATCHES))

    def book(self, kind: str, tasks: Iterable[Any]) -> list[str]:
        """Record tasks as acknowledged; return their ids."""
        ids = [str(task) for task in tasks]
        with self.stage.book.open("a") as book:
            book.writelines(f'{{"task": "{task}", "kind": "{kind}"}}\n' for task in ids)
        return ids

    # Under load -----------------------------------------------------------------------------------

    def calm(self, seconds: float, name: str) -> None:
        """Let time pass. Processes that end by themselves are replaced, as a supervisor does."""
        began, end = bodies.now(), time.monotonic() + seconds
        while time.monotonic() < end:
            self.stage.mend(name)
            threading.Event().wait(min(1.0, max(0.0, end - time.monotonic())))
        self.windows.append(Window(name, 0, began, bodies.now()))

    def count_messages(self) -> None:
        """Count the messages of the backlog, before the first fault."""
        rows = Task.objects.filter(pk__in=self.backlog, publish_count__gt=0)
        number, messages = rows.aggregate(n=Count("pk"), m=Sum("publish_count")).values()
        self.backlog_messages = messages / number if number else 0.0
        ended = Task.objects.filter(pk__in=self.backlog, status="SUCCESS").count()
        self.say(
            f"{ended} of {len(self.backlog)} tasks of the backlog have ended, with"
            f" {self.backlog_messages:.2f} messages a published task"
        )

    def faults(self) -> list[Callable[[], None]]:
        """Return all faults of this campaign in a random order, as functions."""
        known = for_campaign(self.stage.plan)

        def act(number: int) -> Callable[[], None]:
            return lambda: self.strike(number)

        numbers = [fault.number for fault in known]
        self.random.shuffle(numbers)
        return [act(number) for number in numbers]

    def strike(self, number: int) -> None:
        """Inject a fault."""
        fault = next(one for one in for_campaign(self.stage.plan) if one.number == number)
        self.say(f"{fault.name}: {fault.what}")
        began = bodies.now()
        try:
            fault.strike(self.stage)
        except AssertionError as reason:
            self.stage.notes["faults broken off"] += 1
            self.say(f"{fault.name} was broken off: {reason}")
        self.stage.mend(fault.name)
        self.windows.append(Window(fault.name, number, began, bodies.now(), 0.0, fault.what))

    def serve_the_unserved(self) -> None:
        """Delete the messages of the queue without a worker, and start its first worker."""
        stage, began = self.stage, bodies.now()
        purged = purge(self.unserved)
        what = f"{purged} messages of a queue without a worker are deleted, and its first starts"
        self.say(what)
        self.windows.append(Window("first-worker", 99, began, bodies.now(), 0.0, what))
        stage.worker(self.drawn.pool, self.drawn.slots, [self.unserved]).ready()

    # End ------------------------------------------------------------------------------------------

    def stop_the_load(self) -> None:
        """End the process that creates tasks."""
        assert self.stage.loader is not None
        self.stage.stop.touch()
        self.stage.loader.process.wait(60)

    def bring_the_old_release_back(self) -> None:
        """Replace the workers by those that know the removed function. The former ones finish what
        they run.
        """
        stage, began = self.stage, bodies.now()
        before = list(stage.workers)
        old = stage.start_workers(CHAOS_ROLE=bodies.ROLES_THAT_KNOW[1])
        for program in old:
            program.ready()
        for program in before:
            if self.unserved not in program.arguments:
                stage.watch.retire(program)
                with suppress(ProcessLookupError):
                    program.process.terminate()
                stage.forget(program)
        # A task that was refused is published again after two waits for lost messages, at most
        # 30 s.
        over = bodies.now() + min(30.0, 2 * stage.plan.settings.get("REPUBLISH_AFTER", 15.0))
        self.windows.append(Window("old-release", 99, began, over, 0.0, "a deployment"))

    def supervision(self) -> Supervision:
        """Return what is known about the processes."""
        plan, drawn, beats = self.stage.plan, self.drawn, self.stage.watch.beats
        limits = [Limit(drawn.global_limit)] * bool(drawn.global_limit)
        if drawn.named_limit:
            limits.append(Limit(drawn.named_limit, bodies.work_within_a_limit.name))
        return Supervision(
            workers=self.stage.watch.seen(),
            faults=tuple(
                Interval(window.began, window.over, window.name)
                for window in self.windows
                if window.number
            ),
            grace=plan.grace,
            lease=plan.settings.get("LEASE", 60.0),
            delays=late_beats(beats, BEAT),
            limits=tuple(limits),
            errors=tuple(self.errors()),
            backlog_messages=self.backlog_messages,
        )

    def errors(self) -> Iterable[str]:
        """Yield the errors with which messages of batches ended."""
        for program in self.stage.cluster.programs:
            for error in errors_of_batches(program.output()):
                yield f"{program.name}: run_batch raised {error}"


def wait_for_the_end(stage: Stage) -> None:
    """Wait until no task is open, as long as some task ends or starts again and again. Those that are
    open after that are lost.
    """
    began = last = time.monotonic()
    before: tuple[int, int] | None = None

    def ended() -> bool:
        nonlocal before, last
        stage.mend("the load")
        open_tasks = query(Task.objects.open().count)
        started = query(lambda: Task.objects.aggregate(n=Sum("attempts"))["n"])
        now = time.monotonic()
        if open_tasks is not None and started is not None and (open_tasks, started) != before:
            before, last = (open_tasks, started), now
        assert now < last + WITHOUT_PROGRESS, "tasks are open, and none of them starts or ends"
        return open_tasks == 0

    until(ended, within=LONGEST_END, message="all tasks have ended")
    stage.notes["seconds until the end"] = round(time.monotonic() - began)
