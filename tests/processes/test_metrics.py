"""Totals equal a recount of the log although processes die, and any scheduler serves them."""

import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from django_durable_tasks.contrib.metrics.models import MetricMinute
from tests.database.metrics.counting import recount, totals
from tests.process_state import count_endings
from tests.processes.cluster import SHORT, Program, cluster_in
from tests.processes.rows import ended
from tests.project import bodies
from tests.waiting import until

_ALL = ("SUCCESS", "FAILED", "RETRY", "LOST", "CANCELLED", "FENCED", "DUPLICATE")
_EXECUTED = "durable_tasks_executed_total"


def _metrics_address(scheduler: Program) -> str:
    """Return the address that the scheduler has printed."""

    def printed() -> str:
        found = scheduler.output().partition("Metrics: ")[2].partition("\n")
        return found[0] if found[1] else ""

    return until(printed, within=30, message="the scheduler serves its metrics")


def _executed(address: str) -> dict[str, int]:
    with urllib.request.urlopen(address, timeout=20) as answer:
        parse: Any = text_string_to_metric_families
        families = list(parse(answer.read().decode()))
    found = dict[str, int]()
    for family in families:
        for sample in family.samples:
            if sample.name == _EXECUTED:
                status = sample.labels["status"]
                found[status] = found.get(status, 0) + int(sample.value)
    return found


def test_totals_equal_a_recount_after_workers_and_the_leader_were_killed_under_load(
    rows: None, tmp_path: Path, settings: Any
) -> None:
    MetricMinute._base_manager.all().delete()
    settings.DURABLE_TASKS = dict(SHORT)
    count_endings()
    with cluster_in(tmp_path, SHORT) as cluster:
        worker, leader = cluster.worker(), cluster.scheduler("--metrics-port", "0")
        other = cluster.scheduler("--metrics-port", "0")
        cluster.ready()
        tasks = [bodies.add.schedule(number, 1) for number in range(60)]
        tasks += [bodies.hold_the_interpreter.schedule(0.3) for _ in range(20)]
        until(lambda: sum(recount().values()) > 10, within=40, message="tasks run")
        worker.kill()
        second = cluster.worker().ready()
        until(lambda: sum(recount().values()) > 40, within=60, message="more tasks run")
        (leader if cluster.leading() is leader else other).kill()
        second.kill()
        cluster.worker().ready()
        for task in tasks:
            ended(task, within=90)
        until(lambda: totals() == recount(), within=60, message="everything is counted")
        alive = leader if leader.alive() else other
        counted = {status: number for status, number in recount().items() if status != "FENCED"}
        until(
            lambda: _executed(_metrics_address(alive)) == counted,
            within=30,
            message="the scrape equals the recount",
        )
    assert recount()["SUCCESS"] == len(tasks)
    assert set(recount()) <= set(_ALL)
