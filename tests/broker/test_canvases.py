"""The same canvases, run by Celery with plain tasks and by the package with durable ones: each task
receives the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import pytest
import redis
from celery import signature

from django_durable_tasks import Workflow
from django_durable_tasks.models import WorkflowRun
from tests.broker import plain_canvas_tasks
from tests.broker.canvases import FAILING, FORGOTTEN, PASSING, Maker
from tests.processes.cluster import Program, cluster_in
from tests.processes.rows import PATIENCE
from tests.project import canvas as durable
from tests.waiting import until

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.skipif(
        celery.__version__ < "5.7",
        reason="Celery 5.6 cannot send all of these canvases; they run with the newest versions",
    ),
    pytest.mark.usefixtures("db"),
    pytest.mark.timeout(1_000),
    pytest.mark.filterwarnings("ignore:task_allow_error_cb_on_chord_header=False"),
]

CANVASES = PASSING | FAILING | FORGOTTEN
WITHIN = 10 * PATIENCE
LOOKS = 25
Notes = dict[str, list[tuple[Any, ...]]]


class _Quiet:
    """Returns whether no plain task waits or runs and nothing was recorded, in several successive
    checks.

    One check is not enough: a message that is just being received is in neither place.
    """

    def __init__(self, notebook: Path) -> None:
        self.notebook, self.seen, self.looks = notebook, 0, 0
        self.client = redis.Redis.from_url(plain_canvas_tasks.REDIS)

    def __call__(self) -> bool:
        asked = self.client.pipeline()
        asked.llen(f"{plain_canvas_tasks.QUEUE}:{plain_canvas_tasks.QUEUE}")
        asked.zcard(f"{plain_canvas_tasks.QUEUE}:unacked_index")
        before, self.seen = (
            self.seen,
            sum(map(len, plain_canvas_tasks.recorded(self.notebook).values())),
        )
        self.looks = (
            0 if any(asked.execute()) or before != self.seen or not before else self.looks + 1
        )
        return self.looks > LOOKS


@pytest.fixture(scope="module")
def recorded_by_celery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notes]:
    """Run all canvases with a plain Celery worker."""
    folder = tmp_path_factory.mktemp("celery")
    notebook = folder / "notes"
    command = f"-m celery -A tests.broker.plain_canvas_tasks worker -n {plain_canvas_tasks.QUEUE}@here -Q {plain_canvas_tasks.QUEUE} -c 2"
    options = ["--without-gossip", "--without-mingle", "--loglevel", "WARNING"]
    worker = Program(
        "plain-canvases",
        [*command.split(), *options],
        {plain_canvas_tasks.NOTEBOOK: str(notebook)},
        folder,
    )
    try:
        sent = [
            signature(
                make(Maker(plain_canvas_tasks.step, plain_canvas_tasks.mapped, name)),
                app=plain_canvas_tasks.plain_app,
            ).apply_async()
            for name, make in CANVASES.items()
        ]
        until(
            _Quiet(notebook), within=WITHIN, message=f"the canvases end:\n{worker.output()[-3000:]}"
        )
        yield plain_canvas_tasks.recorded(notebook)
        assert len(sent) == len(CANVASES)
    finally:
        worker.kill()
        client = redis.Redis.from_url(plain_canvas_tasks.REDIS)
        for key in client.scan_iter(f"{plain_canvas_tasks.QUEUE}:*"):
            client.delete(key)


@pytest.fixture(scope="module")
def recorded_by_workflows(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Notes, dict[str, str]]]:
    """Run all canvases as workflows. Returns what was recorded and the final status of the runs."""
    folder = tmp_path_factory.mktemp("workflows")
    notebook = folder / "notes"
    with cluster_in(folder) as cluster:
        cluster.worker(TEST_CANVAS_NOTEBOOK=str(notebook))
        cluster.scheduler()
        cluster.ready()
        for name, make in CANVASES.items():
            Workflow.from_canvas(
                make(Maker(durable.step, durable.mapped, name)), name=_named(name)
            ).start()
        until(
            lambda: not WorkflowRun.objects.filter(status="RUNNING"),
            within=WITHIN,
            message="the workflows end",
        )
        yield (
            plain_canvas_tasks.recorded(notebook),
            dict(WorkflowRun.objects.values_list("name", "status")),
        )


def _named(canvas: str) -> str:
    return "".join(letter if letter.isalpha() else "-" for letter in canvas)


@pytest.mark.parametrize("name", PASSING | FAILING)
def test_each_task_receives_and_returns_the_same_as_in_celery(
    name: str, recorded_by_celery: Notes, recorded_by_workflows: tuple[Notes, dict[str, str]]
) -> None:
    assert recorded_by_celery[name]
    assert recorded_by_workflows[0][name] == recorded_by_celery[name]


@pytest.mark.parametrize("name", PASSING)
def test_a_canvas_without_failures_succeeds(
    name: str, recorded_by_workflows: tuple[Notes, dict[str, str]]
) -> None:
    assert recorded_by_workflows[1][_named(name)] == "SUCCESS"


@pytest.mark.parametrize("name", FORGOTTEN)
def test_an_errback_of_a_body_is_called_although_celery_forgets_it(
    name: str, recorded_by_celery: Notes, recorded_by_workflows: tuple[Notes, dict[str, str]]
) -> None:
    called = ("e(<id>)", False, ("?",))
    assert called not in recorded_by_celery[name]
    assert recorded_by_workflows[0][name] == sorted([*recorded_by_celery[name], called])
