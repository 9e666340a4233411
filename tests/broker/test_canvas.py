"""The same canvases, run by Celery with plain tasks and by us with durable ones: each task received
the same.
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
from tests.broker import twins
from tests.broker.canvases import FAILING, FORGOTTEN, PASSING, Maker
from tests.processes.fleet import Program, fleet_in
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
    """Whether nothing waits or runs at the twins, and nothing was noted, as seen in so many looks
    one after another.

    One look is not enough: a message that is just being taken is in neither place.
    """

    def __init__(self, notebook: Path) -> None:
        self.notebook, self.seen, self.looks = notebook, 0, 0
        self.client = redis.Redis.from_url(twins.REDIS)

    def __call__(self) -> bool:
        asked = self.client.pipeline()
        asked.llen(f"{twins.QUEUE}:{twins.QUEUE}")
        asked.zcard(f"{twins.QUEUE}:unacked_index")
        before, self.seen = self.seen, sum(map(len, twins.noted(self.notebook).values()))
        self.looks = (
            0 if any(asked.execute()) or before != self.seen or not before else self.looks + 1
        )
        return self.looks > LOOKS


@pytest.fixture(scope="module")
def by_celery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notes]:
    """Run all canvases by a worker of Celery that knows nothing of us."""
    folder = tmp_path_factory.mktemp("celery")
    notebook = folder / "notes"
    command = f"-m celery -A tests.broker.twins worker -n {twins.QUEUE}@here -Q {twins.QUEUE} -c 2"
    options = ["--without-gossip", "--without-mingle", "--loglevel", "WARNING"]
    worker = Program("twins", [*command.split(), *options], {twins.NOTEBOOK: str(notebook)}, folder)
    try:
        sent = [
            signature(make(Maker(twins.step, twins.mapped, name)), app=twins.twins).apply_async()
            for name, make in CANVASES.items()
        ]
        until(
            _Quiet(notebook), within=WITHIN, message=f"the canvases end:\n{worker.said()[-3000:]}"
        )
        yield twins.noted(notebook)
        assert len(sent) == len(CANVASES)
    finally:
        worker.kill()
        client = redis.Redis.from_url(twins.REDIS)
        for key in client.scan_iter(f"{twins.QUEUE}:*"):
            client.delete(key)


@pytest.fixture(scope="module")
def by_us(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Notes, dict[str, str]]]:
    """Run all canvases as workflows; give what was noted and where the runs stand."""
    folder = tmp_path_factory.mktemp("workflows")
    notebook = folder / "notes"
    with fleet_in(folder) as fleet:
        fleet.worker(TEST_CANVAS_NOTEBOOK=str(notebook))
        fleet.scheduler()
        fleet.ready()
        for name, make in CANVASES.items():
            Workflow.from_canvas(
                make(Maker(durable.step, durable.mapped, name)), name=_named(name)
            ).start()
        until(
            lambda: not WorkflowRun.objects.filter(status="RUNNING"),
            within=WITHIN,
            message="the workflows end",
        )
        yield twins.noted(notebook), dict(WorkflowRun.objects.values_list("name", "status"))


def _named(canvas: str) -> str:
    return "".join(letter if letter.isalpha() else "-" for letter in canvas)


@pytest.mark.parametrize("name", PASSING | FAILING)
def test_each_task_receives_and_returns_what_it_does_in_celery(
    name: str, by_celery: Notes, by_us: tuple[Notes, dict[str, str]]
) -> None:
    assert by_celery[name]
    assert by_us[0][name] == by_celery[name]


@pytest.mark.parametrize("name", PASSING)
def test_a_canvas_without_failures_is_a_success(
    name: str, by_us: tuple[Notes, dict[str, str]]
) -> None:
    assert by_us[1][_named(name)] == "SUCCESS"


@pytest.mark.parametrize("name", FORGOTTEN)
def test_an_errback_of_a_body_is_called_also_where_celery_forgets_it(
    name: str, by_celery: Notes, by_us: tuple[Notes, dict[str, str]]
) -> None:
    called = ("e(<id>)", False, ("?",))
    assert called not in by_celery[name]
    assert by_us[0][name] == sorted([*by_celery[name], called])
