"""Runs a plan: a calm period, one fault after the other with its recovery, a calm period, the end;
then it is checked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import current_app
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from django.db.models import Q

from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import close_all
from tests.chaos import bodies, counted, notified, watching
from tests.chaos.campaign import Campaign, wait_for_the_end
from tests.chaos.faults.catalogue import for_broker
from tests.chaos.faults.registry import Fault
from tests.chaos.figures import POOLED, QUEUES, Window, figures
from tests.chaos.plan import EVERY, SCHEDULES, SCHEDULES_OF_CAMPAIGN, further_queues
from tests.chaos.records import Calm, History, Supervision, Timetable
from tests.chaos.servers import RabbitMQ, pooled_transactions
from tests.chaos.stage import Stage, query, set_origin
from tests.chaos.verdict import histories_of, violations
from tests.processes.rows import waiting_messages
from tests.waiting import until

RECOVERY, QUIET = 90.0, 180.0
# Seconds after a fire time in which its task must start. In a campaign it may wait for the backlog.
LATENESS, LATENESS_OF_CAMPAIGN = 120.0, 3_600.0
MOST_TOLD, TOLD_WITH_HISTORY = 20, 2
_OPEN = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND"
        " application_name <> 'chaos-stage'"
    ),
    "mysql": (
        "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND id <>"
        " connection_id()"
    ),
}
_ASLEEP = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE"
        " 'idle in transaction%' AND now() - state_change > interval '2 s'"
    ),
    "mysql": (
        "SELECT count(*) FROM information_schema.processlist AS p JOIN"
        " information_schema.innodb_trx AS t ON t.trx_mysql_thread_id = p.id WHERE p.db ="
        " database() AND p.command = 'Sleep' AND p.time > 2"
    ),
}


def play(stage: Stage) -> dict[str, Any]:
    """Run the plan of this stage. Returns its figures and violations as plain values."""
    set_origin(stage.folder)
    call_command("migrate", verbosity=0, interactive=False)
    watching.install()
    try:
        if stage.plan.configuration is None:
            stage.receive()
        campaign = Campaign(stage, ProgressLog(stage)) if stage.plan.configuration else None
        if campaign is None:
            schedules, windows = _acts(stage)
        else:
            schedules = [_paused(row) for row in campaign.play(lambda: _declare_all(stage))]
            windows = campaign.windows
        history = _judged(stage, schedules, campaign)
        broken = violations(history)
        dropped = sum(
            program.output().count("Ignored message") for program in stage.cluster.programs
        )
        found = figures(history, windows, list(watching.lines(stage.book)), stage.notes, dropped)
        shown = {
            name: {"number": len(messages), "first": messages[:MOST_TOLD]}
            for name, messages in broken.items()
        }
        of_tasks = histories_of(
            history, [text for messages in broken.values() for text in messages[:TOLD_WITH_HISTORY]]
        )
        plan = stage.plan
        place = {
            "broker": plan.broker,
            "database": plan.database,
            "configuration": plan.configuration.in_words() if plan.configuration else "",
            "pooled": plan.pooled,
            "seed": plan.seed,
            "servers": _servers(stage),
        }
        return {**place, **found, "violations": shown, "histories": of_tasks}
    finally:
        stage.end()
        if not stage.plan.private:
            _delete_queues(stage.plan.broker)
        close_all()
        connections.close_all()


def _acts(stage: Stage) -> tuple[list[RecurringTask], list[Window]]:
    say = ProgressLog(stage)
    for start in (stage.scheduler, stage.scheduler, stage.start_workers):
        start()
    stage.cluster.ready()
    until(lambda: query(counted.counting_has_begun), within=60, message="the metrics are counted")
    schedules = _declare_all(stage)
    load = stage.load()
    until(
        lambda: any(watching.lines(stage.book)) or not load.alive(),
        within=60,
        message="the load begins",
    )
    assert load.alive(), load.output()[-3000:]
    windows = [_window(stage, "before", lambda: stage.linger(stage.plan.calm))]
    chosen = [
        one
        for one in for_broker(stage.plan.broker, private=stage.plan.private)
        if one.name in stage.plan.faults
    ]
    end = time.monotonic() + stage.plan.seconds
    for number, one in enumerate(_in_turn(stage, chosen, end), 1):
        say(f"{number}/{max(number, len(chosen))} {one.name}: {one.what}")
        windows.append(_struck(stage, one))
        say(
            f"{number}/{max(number, len(chosen))} {one.name}: recovered after"
            f" {windows[-1].recovery:.1f} s"
        )
    windows.append(_window(stage, "after", lambda: stage.linger(stage.plan.calm)))
    stage.stop.touch()
    say("quiet: the load stops, schedules are paused, what is open ends")
    assert stage.loader is not None
    stage.loader.process.wait(60)
    return [_paused(row) for row in schedules], windows


def _in_turn(stage: Stage, chosen: list[Fault], end: float) -> Iterator[Fault]:
    """Yield each fault once, then random ones until the time is over."""
    yield from chosen
    while chosen and time.monotonic() < end:
        yield stage.random.choice(chosen)


class ProgressLog:
    """Prints the progress of the run to stderr."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._began = stage, time.monotonic()

    def __call__(self, text: str) -> None:
        tasks = query(Task.objects.count) or 0
        line = (
            f"{time.monotonic() - self._began:6.0f} s  {self._stage.plan.broker:8}  {tasks:6,}"
            f" tasks  {text}\n"
        )
        sys.stderr.write(line)
        sys.stderr.flush()


def _window(stage: Stage, name: str, act: Callable[[], object]) -> Window:
    began = bodies.now()
    act()
    return Window(name, 0, began, bodies.now())


def _struck(stage: Stage, one: Fault) -> Window:
    """Run a fault, and measure how long it takes until all due tasks have been started and the
    running ones have ended.
    """
    began = bodies.now()
    try:
        one.strike(stage)
    except AssertionError as reason:
        stage.notes["faults broken off"] += 1
        sys.stderr.write(f"{one.name} was broken off: {reason}\n")
    stage.mend(one.name)
    over, moment = bodies.now(), time.monotonic()
    limit = datetime.fromtimestamp(over, UTC)
    unstarted = Q(status__in=("PENDING", "QUEUED"), failures=0)
    waiting = unstarted | Q(status="RUNNING", started_at__lt=limit)
    late = Task.objects.filter(waiting, run_at__lt=limit)

    def recovered() -> bool:
        stage.mend(one.name)  # a later attempt of a task that ends its process
        return query(late.exists) is False

    try:
        until(recovered, within=RECOVERY)
    except AssertionError:
        stage.notes["recoveries not seen"] += 1
    return Window(one.name, one.number, began, over, time.monotonic() - moment, one.what)


# Schedules ----------------------------------------------------------------------------------------


def _declare_all(stage: Stage) -> list[RecurringTask]:
    stage.notes["baseline"] = _connections()
    number = SCHEDULES if stage.plan.configuration is None else SCHEDULES_OF_CAMPAIGN
    return [_declared(number) for number in range(number)]


def _declared(number: int) -> RecurringTask:
    anchor = database_now().replace(microsecond=0) + timedelta(seconds=3, milliseconds=100 * number)
    row: RecurringTask = RecurringTask.objects.upsert(
        name=f"chaos {number}",
        task=bodies.tick,
        interval=EVERY,
        start_time=anchor,
        catch_up_mode="RUN_ALL_MISSED",
        max_catchup_runs=1_000,
        overlap="ALLOW",
    )
    return row


def _paused(row: RecurringTask) -> RecurringTask:
    row.pause("the end of chaos")
    found: RecurringTask = RecurringTask.objects.get(pk=row.pk)
    return found


# End ----------------------------------------------------------------------------------------------


def _judged(stage: Stage, schedules: list[RecurringTask], campaign: Campaign | None) -> History:
    """Wait until all tasks have ended, every event is sent and everything is counted; read the
    history. Tasks that have not ended by then are lost.
    """
    retried = set[str]()

    def finished() -> bool:
        stage.mend("the load")
        return query(lambda: notified.finish_deliveries(retried)) is True

    try:
        if campaign is None:
            until(finished, within=QUIET)
            until(lambda: query(counted.all_is_counted) is True, within=60)
        else:
            wait_for_the_end(stage)
        until(lambda: not _messages(stage), within=30)
        until(lambda: _connections() <= _baseline(stage), within=60)
    except AssertionError:
        stage.notes["quiet not reached"] += 1
    tables = tuple(
        Timetable(
            str(row.pk),
            row.start_time.timestamp(),
            EVERY,
            row.watermark_at.timestamp(),
            LATENESS if campaign is None else LATENESS_OF_CAMPAIGN,
        )
        for row in schedules
    )
    done = Task.objects.filter(status="SUCCESS").order_by()
    stage.notes[QUEUES] = done.values("queue").distinct().count()
    stage.notes[POOLED] = pooled_transactions(stage.pooler) if stage.pooler else 0
    calm, supervision = _calm(stage), campaign.supervision() if campaign else Supervision()
    if campaign is not None and stage.notes["quiet not reached"]:
        stage.end()  # so that nothing changes while the history is read
    history = watching.read(stage.folder / "ledger.jsonl", stage.book, tables, calm)
    if campaign is not None:
        return replace(history, supervision=supervision, has_metrics=False)
    assert stage.receiver is not None
    assert stage.receiver.alive(), stage.receiver.output()[-3000:]
    creations = counted.creations()
    return replace(
        history,
        requests=notified.requests(stage.folder),
        selections=notified.SELECTIONS,
        undelivered_events=notified.undelivered(),
        counted=counted.counted(),
        creations=creations,
        retried=frozenset(retried),
    )


def _calm(stage: Stage) -> Calm:
    now = database_now() - timedelta(seconds=10)
    return Calm(
        overdue=Task.objects.filter(Q(due_at__lt=now) | Q(lease_until__lt=now)).count(),
        asleep_in_transactions=_sessions(_ASLEEP),
        connections=_connections(),
        baseline=_baseline(stage),
        messages=_messages(stage),
        unacknowledged=_unacknowledged(stage),
    )


def _baseline(stage: Stage) -> int:
    """Return the number of connections at the beginning plus those that busy workers may open,
    which are no leak.
    """
    return 2 * stage.notes["baseline"] + 20


def _connections() -> int:
    return _sessions(_OPEN)


def _sessions(queries: Mapping[str, str]) -> int:
    """Return a number of sessions. Files have none."""
    if connection.vendor not in queries:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(queries[connection.vendor])
        (found,) = cursor.fetchone()
    return int(found)


def _delete_queues(broker: str) -> None:
    default = settings.CELERY_TASK_DEFAULT_QUEUE
    with current_app.connection_for_write() as opened:
        for name in (default, *further_queues(default, broker)):
            current_app.amqp.queues[name](opened.default_channel).delete()


def _servers(stage: Stage) -> list[str]:
    """Return the servers of this run with their versions."""
    with current_app.connection_for_write() as opened:
        channel = opened.default_channel
        if stage.plan.broker == "filesystem":
            broker = "files"
        elif stage.plan.broker == "database":
            broker = "messages in the database"
        elif stage.plan.broker == "redis":
            broker = f"Redis {channel.client.info('server')['redis_version']}"
        else:
            broker = f"RabbitMQ {opened.connection.server_properties['version']}"
    database = ".".join(map(str, connection.get_database_version()))
    found = [f"{connection.display_name} {database}", broker]
    return [*found, "PgBouncer in transaction mode"] if stage.pooler else found


def _messages(stage: Stage) -> int:
    return waiting_messages(settings.CELERY_TASK_DEFAULT_QUEUE)


def _unacknowledged(stage: Stage) -> int:
    if not isinstance(stage.broker, RabbitMQ):
        return 0
    output = stage.broker.run_tool("list_queues", "--no-table-headers", "messages_unacknowledged")
    return sum(int(word) for word in output.split() if word.isdigit())
