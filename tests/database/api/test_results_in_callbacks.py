"""Who creates a callback to a server of its choice receives results as it may read them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from tests.database.api.client import SETTINGS, ApiClient, a_client
from tests.delivery import deliver
from tests.http_servers import Listener, answer, answering, listening
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db(transaction=True)
ECHO = "tests.project.tasks.echo"
SECRET = "s3cr3t-739"
# Longer than the test: the scheduler does not publish the task again.
WAITS = timedelta(minutes=1)
NO_SECRETS = tuple(scope for scope in ApiScope if scope is not ApiScope.SECRETS)


@pytest.fixture
def server(settings: Any) -> Iterator[Listener]:
    """A server of the client, which answers 200."""
    with listening(answering(answer(body=b"ok"))) as server:
        settings.DURABLE_TASKS = {
            **SETTINGS,
            "API_TASKS": ["*"],
            "HTTP_ALLOW": ["127.0.0.0/8"],
            "HTTP_PORTS": [server.port],
            "HTTP_SIGNING_KEYS": ["k" * 40],
        }
        yield server


def _received(client: ApiClient, server: Listener, result: Any, path: list[Any]) -> str:
    """Run a workflow whose callback contains a result; return the body of the request."""
    body = {"result": {"$result": "a", "path": path}}
    config = {"url": server.url(), "body": body}
    callback = {"step": "b", "target_type": "HTTP_CALLBACK", "target_config": config}
    first = {"step": "a", "target_config": {"task": ECHO}}
    steps = [first, {**callback, "after": ["a"]}]
    made = client.post("/workflows", {"name": "flow", "steps": steps})
    assert made.status_code == 201, made.content
    rows = Task.objects.unguarded().filter(workflow_id=made.json()["workflow_id"])
    rows.filter(step="a").update(
        status=Status.SUCCESS, result=result, completed_at=database_now(), due_at=None
    )
    rows.filter(step="b").update(
        status=Status.QUEUED, epoch=1, publish_count=1, due_at=database_now() + WAITS
    )
    deliver(rows.get(step="b"))
    assert rows.get(step="b").status == Status.SUCCESS
    return server.body(-1).decode()


@settings(
    max_examples=repetitions(5),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(["token", "card", "api_key"]),
    depth=st.integers(0, 2),
    part=st.booleans(),
)
@example(name="token", depth=0, part=True)
def test_a_callback_receives_the_secrets_of_a_result_masked_like_its_creator(
    acme: ApiClient, server: Listener, name: str, depth: int, part: bool
) -> None:
    result: Any = {name: SECRET, "public": 7}
    path: list[Any] = [name] if part else []
    for _ in range(depth):
        result, path = {"rows": [result]}, ["rows", 0, *path] if part else []
    masked = _received(a_client(acme.tenant, *NO_SECRETS), server, result, path)
    assert SECRET not in masked
    assert "********" in masked
    assert SECRET in _received(acme, server, result, path)
