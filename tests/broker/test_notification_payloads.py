"""No notification payload ends a listener, and after any of them it still receives."""

from collections.abc import Callable

import pytest
from django.db import connection
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_durable_tasks.scheduler.notifier import CHANNEL
from tests.broker.listening_schedulers import Recorder, recorder, soon
from tests.project import bodies
from tests.repetitions import repetitions
from tests.waiting import until

__all__ = ["recorder"]
pytestmark = pytest.mark.postgresql

_PAYLOADS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200),
    st.builds(
        "{}|{}|{}|{}".format,
        st.sampled_from(["", "eu"]),
        st.sampled_from(["rows", "leader_work", "test", "odd"]),
        st.one_of(st.integers().map(str), st.sampled_from(["٣", "1e9", "9" * 14])),
        st.text("|x", max_size=3),
    ),
)


@hypothesis_settings(
    max_examples=repetitions(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(payloads=st.lists(_PAYLOADS, min_size=1, max_size=10))
def test_no_payload_ends_the_listener(listening: Recorder, payloads: list[str]) -> None:
    with connection.cursor() as cursor:
        for payload in payloads:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])
    (listener,) = listening.wakeups._listeners
    assert listener.is_alive()


def test_a_listener_still_receives_after_any_payload(listening: Recorder) -> None:
    for payload in (
        "",
        "|",
        "|rows|",
        "|rows|99999999999999|",
        "|rows|x|",
        "odd",
        "eu|rows|1|",
        "|test|1|" + "x" * 4_000,
    ):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])
    at = soon()
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: listening.received(at), within=20)
    assert listening.wakeups.listening


@pytest.fixture
def listening(recorder: Callable[..., Recorder]) -> Recorder:
    """Return a recorder that listens to PostgreSQL."""
    return recorder()
