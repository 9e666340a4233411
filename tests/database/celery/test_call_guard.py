"""Celery's ways to call a durable task create a task or raise at the call before anything is
published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import chain, chord, chunks, current_app, group, shared_task, signature, xmap
from celery.canvas import Signature
from django.conf import settings as django_settings

from django_durable_tasks.celery import calls
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.exceptions import InvalidArguments, InvalidOption
from django_durable_tasks.models import Task
from tests.celery_settings import result_backend
from tests.messages import take_messages
from tests.project.tasks import add, echo

pytestmark = pytest.mark.django_db(transaction=True)


@shared_task(name="tests.call_guard.plain")
def plain(*_: Any) -> int:
    """Serve as an ordinary Celery task."""
    return 1


QUEUE: str = django_settings.CELERY_TASK_DEFAULT_QUEUE
durable: Any = add
other: Any = echo

REFUSED: dict[str, Callable[[], Any]] = {
    "map": lambda: durable.map([[1, 2]]).delay(),
    "starmap": lambda: durable.starmap([[1, 2]]).apply_async(),
    "chunks": lambda: durable.chunks([[1, 2], [3, 4]], 1).apply_async(),
    "chunks, called": lambda: [durable.chunks([[1, 2]], 1)()],
    "a map made by hand": lambda: xmap(durable.s(), [[1, 2]]).delay(),
    "chunks made by hand": lambda: chunks(durable.s(), [[1, 2]], 1).delay(),
    "a map that was serialized": lambda: Signature.from_dict(dict(durable.map([[1, 2]]))).delay(),
    "a map in a group": lambda: group(plain.s(), durable.map([[1, 2]])).delay(),
    "a group": lambda: group(durable.s(1, 2), durable.s(3, 4)).delay(),
    "the last of a group": lambda: group(plain.s(), plain.s(), durable.s(1, 2)).delay(),
    "a group of a generator": lambda: group(task.s(1, 2) for task in (plain, durable)).delay(),
    "the body of a chord": lambda: chord([plain.s(), plain.s()])(durable.s(2)),
    "the header of a chord": lambda: chord([plain.s(), durable.s(1, 2)])(plain.s()),
    "the header of a chord, of a generator": lambda: chord(durable.s(n, n) for n in range(9))(
        plain.s()
    ),
    "a group before it": lambda: chain(group(plain.s(), plain.s()), durable.s(2)).delay(),
    "a chain in a group": lambda: group(plain.s(), plain.s() | durable.s(2)).delay(),
    "the middle of a chain": lambda: chain(plain.s(), durable.s(2), plain.s()).delay(),
    "the first of a chain": lambda: chain(durable.s(1, 2), plain.s()).delay(),
    "a chain of durable tasks": lambda: chain(durable.s(1, 2), durable.s(3)).delay(),
    "a chain within a chain": lambda: chain(plain.s(), chain(durable.s(2), plain.s())).delay(),
    "a chord in a chain": lambda: chain(
        plain.s(), chord([plain.s()], durable.s(2)), plain.s()
    ).delay(),
    "a chain with an errback": lambda: chain(plain.s(), durable.s(2)).apply_async(
        link_error=plain.s()
    ),
    "a chain with a callback": lambda: chain(plain.s(), durable.s(2)).apply_async(link=plain.s()),
    "a step with a callback": lambda: chain(plain.s(), durable.s(2).set(link=plain.s())).delay(),
    "a step with an exchange": lambda: chain(
        plain.s(), durable.s(2).set(exchange="elsewhere")
    ).delay(),
    "an errback": lambda: plain.apply_async(link_error=durable.s(1)),
    "an errback of a signature": lambda: plain.s().on_error(durable.s(1)).delay(),
    "an errback in a group": lambda: group(plain.s(), plain.s().on_error(durable.s(1))).delay(),
    "one of two errbacks": lambda: plain.apply_async(link_error=[plain.s(), durable.s(1)]),
    "one of two callbacks": lambda: plain.apply_async(link=[plain.s(), durable.s(1)]),
    "a callback with a callback": lambda: plain.apply_async(link=durable.s(1).set(link=plain.s())),
    "an errback by name": lambda: current_app.send_task("shop.elsewhere", link_error=durable.s(1)),
    "a chord by option": lambda: plain.apply_async(chord=durable.s(1), group_id="g"),
}


@pytest.fixture(autouse=True)
def _empty_queue() -> None:
    """Remove messages of other tests."""
    take_messages(QUEUE)


@pytest.fixture
def backend() -> Any:
    """Configure a result backend, without which Celery itself refuses chords."""
    with result_backend("cache+memory://"):
        yield


@pytest.mark.parametrize("case", REFUSED)
def test_a_canvas_that_would_be_lost_is_refused_before_anything_is_published(
    backend: None, case: str
) -> None:
    with pytest.raises(InvalidOption, match=r"from_canvas|plain Celery task|queue=") as refused:
        REFUSED[case]()
    assert take_messages(QUEUE) == []
    assert not Task.objects.exists()
    assert (
        "tests.project.tasks.add" in str(refused.value)
        or "cannot be kept" in str(refused.value)
        or ("exchange" in str(refused.value))
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: group(plain.s(), plain.s()).delay(),
        lambda: chain(plain.s(), plain.s()).delay(),
        lambda: chord([plain.s(), plain.s()])(plain.s()),
        lambda: plain.map([1, 2]).delay(),
        lambda: plain.apply_async(link=plain.s(), link_error=[plain.s(), plain.s()]),
        lambda: plain.apply_async(link=durable.s(1)),
        lambda: plain.apply_async(link=chain(plain.s(), durable.s(1))),
        lambda: chain(plain.s(), plain.s(), durable.s(1)).delay(),
        lambda: current_app.send_task("shop.elsewhere", [1]),
        lambda: plain.delay(dict(durable.s(1))),
    ],
)
def test_a_canvas_that_celery_can_run_is_published(backend: None, call: Callable[[], Any]) -> None:
    call()
    assert len(take_messages(QUEUE)) >= 1
    assert not Task.objects.exists()


def test_a_generated_header_is_checked_while_it_is_generated() -> None:
    """Celery publishes its tasks one by one, because a generator may read for minutes. All of them
    were generated before the first one was published.
    """
    generated = list[int]()

    def header() -> Iterator[Any]:
        for number in range(6):
            generated.append(number)
            yield plain.s(number) if number < 5 else durable.s(1, 2)

    canvas = chord(header(), plain.s())
    calls.check(canvas)
    assert len(generated) <= 2
    tasks = iter(canvas.tasks)
    assert [next(tasks).args for _ in range(4)] == [(0,), (1,), (2,), (3,)]
    with pytest.raises(InvalidOption, match="a chord cannot contain"):
        list(tasks)


@pytest.mark.parametrize(
    "call",
    [
        lambda: current_app.send_task(add.name, (1, 2)),
        lambda: current_app.send_task(add.name, [1], {"right": 2}, serializer="json", retry=True),
        lambda: current_app.send_task(add.name, (1, 2), None, 0.0),
        lambda: signature(add.name, (1, 2)).delay(),
        lambda: signature(add.name, (1, 2), app=current_app).apply_async(),
        lambda: chain(durable.s(1, 2)).delay(),
        lambda: durable.s(1, 2).delay(),
    ],
)
def test_a_call_by_name_creates_a_task(call: Callable[[], Any]) -> None:
    result = call()
    assert isinstance(result, DurableResult)
    row = Task.objects.get(pk=result.id)
    assert (row.name, [*row.args, *row.kwargs.values()]) == (add.name, [1, 2])
    assert [message.headers["id"] for message in take_messages(QUEUE)] == [f"{row.pk}.1.1"]


def test_a_call_by_name_is_validated_at_the_call() -> None:
    with pytest.raises(InvalidArguments):
        current_app.send_task(add.name, (1, 2, 3))
    assert not Task.objects.exists()


def test_the_result_of_a_chain_is_that_of_its_durable_last_step() -> None:
    result = chain(plain.s(), durable.s(2)).delay()
    assert isinstance(result, DurableResult)
    [message] = take_messages(QUEUE)
    rest = message.payload[2]["chain"]
    signature(rest[0]).apply_async((1,))  # what the worker does with the following steps of a chain
    assert Task.objects.get(pk=result.id).args == [1, 2]
