"""Takes due durable tasks from their table and delivers them as messages that exist in this process
only.

A durable task needs no message in the database: its row, committed with the data of the caller, is
what the worker consumes. The worker claims and starts as many due tasks as it has free processes,
under the limits, shares and pauses of any claim, and hands each run to a child in the header of a
Celery message. Nothing is published, so nothing can be lost, stale or republished.

A run is taken before a child calls its function. Until the child has accepted the message, this
module renews its lease; what no child has accepted when the worker ends returns to PENDING.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from celery import current_app, signals
from django.db import DEFAULT_DB_ALIAS, Error, connections

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery import prepared_messages, worker_node
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.database_transport import consumers
from django_durable_tasks.limits.backpressure import read_heads
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.dispatch_loop import QueueRotation
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import reason_of
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, batches, claim
from django_durable_tasks.texts import counted

logger = logging.getLogger("django_durable_tasks.transport")

SCHEME = "durable-database"
# The delivery tags of messages that were not claimed from the table of messages begin so.
RUN_TAG = "run-"
# Seconds: tasks that will start within this time are taken ahead, so that a child that ends a short
# run does not wait for a statement; at most _MOST of them.
AHEAD, _MOST = 0.1, 20
# Seconds after which tasks that were taken ahead are returned if none of them could start.
SLOW = 0.5
# Seconds between two looks for the next due time while nothing is due; twice that while
# notifications arrive.
LOOK_EVERY = 1.0
# Seconds: how far a look reads ahead, longer than the pause between two looks; and how many due
# times it reads at most. If there are more, the next look follows at the last one.
_READ_AHEAD, _DUE_TIMES = 2.5, 1_000
# Seconds after which a worker that always finds enough due tasks looks again in which queues and of
# which priorities there are some. A search of all of them takes half a second on MariaDB and SQLite
# if the worker consumes 40 queues.
_KNOWN_FOR = 0.2
# The priorities of Celery's numbers as RabbitMQ orders them; only Redis has the other direction.
_DRIVER = "django"


def broker_name() -> str | None:
    """Return the name of the database in the URL of Celery's broker; None for other brokers."""
    config = current_app.conf
    urls = config.broker_write_url or config.broker_url or ""
    # Celery also takes several URLs for a fail-over, and begins with the first one.
    first = urls.partition(";")[0] if isinstance(urls, str) else next(iter(urls), "")
    url = urlsplit(first)
    if url.scheme != SCHEME:
        return None
    return url.netloc.rpartition("@")[2].partition(":")[0] or DEFAULT_DB_ALIAS


def find_alias(name: str) -> str | None:
    """Return the alias of DATABASES that the URL of a broker names; None if there is none.

    Kombu writes the name in lower case, so case is ignored unless two aliases differ by it only.
    Kombu also takes ``localhost`` for the host of a URL without one.
    """
    if name == "localhost" and name not in connections.settings:
        name = DEFAULT_DB_ALIAS
    if name in connections.settings:
        return name
    return next((alias for alias in connections if alias.lower() == name.lower()), None)


def takes_tasks() -> bool:
    """Return whether the broker is in the database of the durable tasks, so that workers take them
    without messages. Not in Celery's eager mode, in which the caller runs them.
    """
    name = broker_name()
    return name is not None and not ports.eager() and find_alias(name) == conf.settings().DATABASE


def return_messages(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Return the messages of workers that were declared dead, before their leases end; a job of the
    leader.
    """
    name = broker_name()
    alias = None if name is None else find_alias(name)
    return 0 if alias is None else consumers.release_of_dead_nodes(alias)


class _Held(NamedTuple):
    """A taken task whose message has not been delivered: the message, its run, and when it was
    taken, by the monotonic clock.
    """

    message: TaskMessage
    run: Run | None
    at: float


@dataclass(slots=True)
class _Waiting:
    """A delivered run that no child has accepted: since when, and when its lease was renewed."""

    run: Run
    since: float
    renewed: float


class DueTasks:
    """The due tasks of the queues that one connection of a worker consumes."""

    def __init__(self) -> None:
        self._rotation = QueueRotation()
        self._held = deque[_Held]()
        """Taken ahead, for the processes that become free within AHEAD seconds."""
        self._waiting: dict[str, _Waiting] = {}
        """By delivery tag. The threads of a pool remove what they accept, so it is copied before it
        is iterated.
        """
        self._in_doubt = False
        """Whether a take failed, so that it may have started runs that this process does not
        know.
        """
        self._found_enough = False
        self._has_come = 0
        """How many known due times have come since the take before."""
        self._coming = deque[datetime]()
        """The next due times, in order, as of the last look."""
        self._levels: dict[str, int] = {}
        """The queues of these tasks and of those that were due, with their priorities as bits."""
        self._looked_at = self._look_is_due_at = 0.0
        """The times of the monotonic clock of the last look, and until which it suffices."""
        self._gap, self._delivered_at = SLOW, float("-inf")
        self.look_at = 0.0
        """The time of the monotonic clock at which to take tasks, or to look for due times."""
        self.is_full = False
        """Whether no process is free: look again when one becomes free."""

    def look_again(self) -> None:
        """Let the next take look for due times first, because tasks may have been created."""
        self._look_is_due_at = 0.0

    def has_free_process(self) -> bool:
        """Return whether this worker could start a task now."""
        return self._free_processes() > 0

    def _free_processes(self) -> int:
        return worker_node.free_processes(
            [waiting.run.celery_id for waiting in list(self._waiting.values())]
        )

    def accepted(self, delivery_tag: str) -> None:
        """Record that a child has begun the run of this message: it renews the lease."""
        self._waiting.pop(delivery_tag, None)

    def rejected(self, delivery_tag: str) -> None:
        """Return the task of this message to PENDING; Celery calls no function for it."""
        refused = self._waiting.pop(delivery_tag, None)
        if refused is not None:
            _return([refused.run])

    def take(self, channels: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Start due tasks of these queues, as many as there are free processes; yield their
        messages with the queues, which the caller delivers before it asks for the next one.
        ``channels``: the channel that consumes each queue.
        """
        self._renew()
        self._return_held(channels)
        delivered = False
        while self._held and self.has_free_process():
            yield self._deliver(channels, self._held.popleft())
            delivered = True
        # As many as start within AHEAD seconds, at the rate of the last ones.
        free, ahead = self._free_processes(), int(AHEAD / self._gap)
        has_enough = len(self._held) > ahead // 2
        if not free and (delivered or has_enough):
            self._pause()
            if not has_enough:
                # The children first receive what was delivered: a statement would delay that.
                self.look_at = time.monotonic()
            return
        number = free + ahead - len(self._held)
        try:
            if number > 0:
                with dedicated_connection():
                    self._take(channels, number)
        except Error as error:
            self._in_doubt = True
            logger.warning("No due tasks were taken: %s", reason_of(error))
            self.look_at = time.monotonic() + LOOK_EVERY
            return
        while self._held and self.has_free_process():
            yield self._deliver(channels, self._held.popleft())
        if not self.has_free_process():
            self._pause()

    def _pause(self) -> None:
        """Look again when a process becomes free, or when the held tasks have to be returned."""
        self.is_full = True
        oldest = self._held[0].at if self._held else float("inf")
        self.look_at = min(time.monotonic() + LOOK_EVERY, oldest + SLOW)

    def _return_held(self, channels: Mapping[str, Any]) -> None:
        """Return the held tasks to PENDING if none of them could start for SLOW seconds, so that
        other workers run them, and those whose queues are not consumed any more.
        """
        is_slow = bool(self._held) and time.monotonic() - self._held[0].at > SLOW
        if is_slow:
            self._gap = SLOW
        returned = [held for held in self._held if is_slow or held.message.queue not in channels]
        if returned:
            self._held = deque(held for held in self._held if held not in returned)
            _return_undelivered(returned)

    def _take(self, channels: Mapping[str, Any], number: int) -> None:
        place = worker_node.place(conf.settings().LEASE)
        if self._in_doubt:
            task_ids = {waiting.run.task_id for waiting in list(self._waiting.values())}
            task_ids |= {held.message.task_id for held in self._held}
            _return(claim.runs_of_node(place.node, task_ids | worker_node.tasks_in_process()))
            self._in_doubt = False
        if not worker_node.names_in_use():  # the worker is starting or ending
            self.look_at = time.monotonic() + LOOK_EVERY
            return
        now, leases = estimated_now(), _leases()
        due = self._due(channels, now)
        demands = [
            QueueDemand(queue, number, levels=due[queue]) for queue in self._rotation.ordered(due)
        ]
        taken = list[_Held]()
        for group in claim.parted(demands) if demands else ():
            if remaining := number - len(taken):
                at = time.monotonic()
                claimed = claim.take(group, now, remaining, place.node, leases)
                taken += [_Held(message, run, at) for message, run in claimed]
        self._rotation.served({held.message.queue for held in taken})
        if len(taken) < min(self._has_come, number):
            # Another worker has taken them, or they wait for a limit.
            self._look_is_due_at = self.look_at = time.monotonic()
        self._found_enough = len(taken) == number
        if self._found_enough:
            self.look_at = time.monotonic()
        self._held += taken

    def _deliver(self, channels: Mapping[str, Any], held: _Held) -> tuple[str, Any]:
        now = time.monotonic()
        self._gap = max(0.8 * self._gap + 0.2 * min(now - self._delivered_at, SLOW), AHEAD / _MOST)
        self._delivered_at = now
        queue = held.message.queue
        return queue, self._message(channels[queue], held.message, held.run)

    def _due(self, channels: Mapping[str, Any], now: datetime) -> dict[str, int]:
        """Return the queues with due tasks, with their priorities as bits, and plan the next call.

        While the last take found a task for each free process, or a known due time has come, what
        the last look found is searched.
        """
        began = time.monotonic()
        levels = {queue: bits for queue, bits in self._levels.items() if queue in channels}
        is_known = began < self._look_is_due_at
        if self._found_enough and is_known and began - self._looked_at < _KNOWN_FOR:
            self._found_enough = False
            self.look_at = began
            return levels
        self._found_enough = False
        self._has_come = 0
        while self._coming and self._coming[0] <= now:
            self._coming.popleft()
            self._has_come += 1
        if self._has_come and is_known:
            self._plan(began, now)
            return levels
        until = now + timedelta(seconds=_READ_AHEAD)
        heads = [head for head in read_heads(until) if head.queue in channels]
        self._levels = {head.queue: head.levels for head in heads}
        self._has_come, self._coming, self._looked_at = 0, deque(), began
        alias = conf.settings().DATABASE
        self._look_is_due_at = began + consumers.longest_pause(alias, LOOK_EVERY)
        if heads:
            queues = [head.queue for head in heads]
            self._coming += [row[0] for row in claim.coming(queues, now, until, _DUE_TIMES)]
            if len(self._coming) == _DUE_TIMES:
                lasts = (self._coming[-1] - now).total_seconds()
                self._look_is_due_at = min(self._look_is_due_at, began + lasts)
        self._plan(began, now)
        return {head.queue: head.levels for head in heads if head.at <= now}

    def _plan(self, began: float, now: datetime) -> None:
        self.look_at = self._look_is_due_at
        if self._coming:
            pause = (self._coming[0] - now).total_seconds()
            self.look_at = min(self.look_at, began + pause)

    def _message(self, channel: Any, message: Any, run: Run | None) -> Any:
        queue = current_app.amqp.queues[message.queue]
        built = prepared_messages.prepare(channel, _DRIVER, message, queue)
        tag = f"{RUN_TAG}{uuid.uuid4()}"
        built["properties"].update(delivery_tag=tag)
        built["properties"].setdefault("delivery_info", {}).update(
            exchange="", routing_key=message.queue
        )
        if run is not None:
            run = run._replace(celery_id=prepared_messages.celery_id_of(message))
            now = time.monotonic()
            built["headers"][prepared_messages.RUN_HEADER] = prepared_messages.TakenRun(run, now)
            self._waiting[tag] = _Waiting(run, now, now)
        return channel.Message(built, channel=channel)

    def _renew(self) -> None:
        """Renew the leases of delivered runs that wait for a rate limit of Celery. Return those to
        PENDING that a child has not accepted for REPUBLISH_AFTER, because it is stopped.
        """
        now, settings = time.monotonic(), conf.settings()
        old = {
            tag: waiting
            for tag, waiting in list(self._waiting.items())
            if now - waiting.renewed > settings.HEARTBEAT
        }
        if not old:
            return
        of_pool = worker_node.tasks_in_process()
        stuck = [
            tag
            for tag, waiting in old.items()
            if waiting.run.task_id in of_pool and now - waiting.since > settings.REPUBLISH_AFTER
        ]
        if stuck:
            # Not those that a thread of the pool has accepted meanwhile.
            entries = (self._waiting.pop(tag, None) for tag in stuck)
            _return([waiting.run for waiting in entries if waiting is not None])
        leases = _leases()
        beats = [
            (run.task_id, run.epoch, run.run_id, leases.get(run.name, settings.LEASE))
            for run in (waiting.run for tag, waiting in old.items() if tag not in stuck)
        ]
        try:
            if beats:
                with dedicated_connection():
                    attempts.heartbeat(beats)
        except Error as error:
            logger.warning(
                "Leases not renewed: %s (%s)", counted(len(beats), "taken run"), reason_of(error)
            )
            return
        for waiting in old.values():
            waiting.renewed = now

    def give_back(self) -> None:
        """Return the tasks to PENDING that were taken and whose messages no child has accepted."""
        runs, held = [waiting.run for waiting in list(self._waiting.values())], self._held
        self._waiting, self._held = {}, deque()
        _return(runs)
        _return_undelivered(held)


def _return(runs: Sequence[Run]) -> None:
    if not runs:
        return
    try:
        with dedicated_connection():
            number = batches.return_uncalled(runs, worker_node.place(0).worker)
        logger.info("Returned %s that no process had begun.", counted(number, "task"))
    except Error as error:
        logger.warning("Taken tasks return at the end of their leases: %s", reason_of(error))


def _return_undelivered(held: Iterable[_Held]) -> None:
    """Return taken tasks to PENDING, also those that were only claimed: their messages exist in
    this process alone.
    """
    _return([taken.run for taken in held if taken.run is not None])
    if messages := [taken.message for taken in held if taken.run is None]:
        try:
            with dedicated_connection():
                claim.return_to_pending(messages)
        except Error as error:
            logger.warning("Claimed tasks wait for a scheduler: %s", reason_of(error))


def _leases() -> dict[str, float]:
    """Return the leases (seconds) of the tasks that this worker has registered, by name, without
    those whose start has to check more than a claim does.
    """
    leases, default = dict[str, float](), conf.settings().LEASE
    for name in worker_node.names_in_use():
        task = registry.find(name)
        if task is not None and task.options.unique_for is None and not task.target.postpone:
            leases[name] = task.options.lease or default
    return leases


_of_process: list[DueTasks] = []


def of_connection() -> DueTasks:
    """Return a new object for a consuming connection; the end of the worker returns its tasks."""
    due_tasks = DueTasks()
    _of_process.append(due_tasks)
    if _wake not in notifier.takers_of_process:
        notifier.takers_of_process.append(_wake)
    return due_tasks


def on_worker_shutdown(**_: Any) -> None:
    """Return what was taken and not begun, after the pool has ended."""
    for due_tasks in _of_process:
        due_tasks.give_back()


def _wake() -> None:
    consumers.wake(conf.settings().DATABASE, consumers.ECHO)


def connect() -> None:
    """Connect the receiver, and assign the port that decides whether tasks need messages."""
    ports.bind_takes_tasks(takes_tasks)
    signals.worker_shutdown.connect(
        on_worker_shutdown, weak=False, dispatch_uid="django_durable_tasks.due_tasks"
    )
