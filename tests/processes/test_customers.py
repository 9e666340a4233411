"""Three customers use the scheduler over HTTP, as real processes: the reference case of the API."""

import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from example_project.customers.client import Client
from tests.processes.customers import WITHIN, CustomerOfTest, CustomerPlatform, customer_platform
from tests.waiting import until

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("db")]


@pytest.fixture(scope="module")
def platform(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory, vendor: str
) -> Iterator[CustomerPlatform]:
    """Provide one platform for all tests of this file."""
    folder: Path = tmp_path_factory.mktemp("customers")
    with customer_platform(folder, vendor, os.environ["TEST_BROKER"]) as running:
        yield running


def _all_valid(requests: list[dict[str, str]]) -> bool:
    return bool(requests) and {request["signature"] for request in requests} == {"valid"}


def _notify(customer: CustomerOfTest, name: str, event: str, kind: str, **config: object) -> str:
    """Create a notification setting and return the name of its endpoint."""
    body = {"name": name, event: True, "delivery_type": kind, "delivery_config": config}
    answer = customer.api.post("/notification-settings", body)
    assert answer.status == 201, answer.body
    return f"notification-setting-{answer.body['notification_setting_id']}"


def _accept_secrets(customer: CustomerOfTest, *endpoints: str) -> None:
    """Give the customer's server the secrets of its callbacks and of these endpoints."""
    secrets: list[str] = []
    for endpoint in ("", *endpoints):
        named = ("--endpoint", endpoint) if endpoint else ()
        command = ("durable", "signing-secret", customer.url, "--tenant", customer.slug, *named)
        secrets += json.loads(customer.platform.manage(*command, "--format", "json"))["secrets"]
    Client(customer.platform.servers).put(f"/{customer.slug}", secrets)


def test_a_customer_is_notified_reads_why_a_callback_failed_and_replays_it_corrected(
    platform: CustomerPlatform,
) -> None:
    globex = platform.customer("globex")
    slack = _notify(globex, "slack", "on_dead_letter", "SLACK_WEBHOOK", url=f"{globex.url}/slack")
    hook = _notify(globex, "hook", "on_success", "HTTP_WEBHOOK", url=f"{globex.url}/webhook")
    _notify(globex, "mail", "on_dead_letter", "EMAIL", to=["ops@globex.example"])
    _accept_secrets(globex, slack, hook)
    # Every process reads the settings every 2 s, so the first failures may precede them.
    failed = globex.callback("check", {"invoice": 7}, max_attempts=1)
    found = globex.ended(failed)
    assert (found["status"], found["attempts"]) == ("FAILED", 1)
    assert "422" in found["last_error"]

    def notified() -> bool:
        if not globex.received("slack"):
            globex.ended(globex.callback("check", {"invoice": 8}, max_attempts=1))
        return bool(globex.received("slack") and globex.mails())

    until(notified, within=WITHIN, message="Slack and e-mail report the dead letter")
    corrected = {"url": f"{globex.url}/check", "body": {"invoice": 7, "amount": 4_900}}
    answer = globex.api.post(f"/tasks/{failed}/replay", {"target_config": corrected})
    assert answer.ok, answer.body
    assert globex.ended(failed)["status"] == "SUCCESS"
    until(lambda: globex.received("webhook"), within=WITHIN, message="the webhook arrives")
    assert _all_valid([*globex.received("check"), *globex.received("webhook")])
    assert not platform.customer("acme").mails()


def test_a_message_arrives_in_the_queue_of_the_customer(platform: CustomerPlatform) -> None:
    acme = platform.customer("acme")
    queue = f"{platform.environment.get('QUEUE_PREFIX', '')}customer.acme"
    config = {"queue": queue, "body": {"hello": 1}}
    answer = acme.api.post("/tasks", {"target_type": "QUEUE_MESSAGE", "target_config": config})
    assert answer.status == 201, answer.body
    assert acme.ended(answer.body["task_id"])["status"] == "SUCCESS"
    read = f"from customers.visits import read_queue; print(read_queue({queue!r}), 'read')"
    assert "1 read" in platform.manage("shell", "-c", read)


def test_a_customer_sees_nothing_of_another_one(platform: CustomerPlatform) -> None:
    acme, globex = platform.customer("acme"), platform.customer("globex")
    task = acme.callback("accept")
    for path in ("", "/executions", "/dependencies"):
        assert globex.api.get(f"/tasks/{task}{path}").status == 404
    for operation in ("cancel", "replay", "retry"):
        assert globex.api.post(f"/tasks/{task}/{operation}").status == 404
    assert task not in [one["task_id"] for one in globex.api.get("/tasks", limit=200).body["data"]]
    assert acme.ended(task)["status"] == "SUCCESS"
    assert not [one for one in globex.received("accept") if one["id"] == task]


def test_a_customer_cannot_exceed_its_quota_and_others_are_not_affected(
    platform: CustomerPlatform,
) -> None:
    acme, globex = platform.customer("acme"), platform.customer("globex")
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    limits = {one["name"]: one for one in acme.api.get("/quota").body["data"]}
    body = {
        "target_type": "HTTP_CALLBACK",
        "target_config": {"url": f"{acme.url}/accept"},
        "run_at": tomorrow,
    }
    created = next(number for number in count() if not acme.api.post("/tasks", body).ok)
    assert 0 < created <= limits["open_tasks"]["limit"]
    refused = acme.api.post("/tasks", body)
    assert (refused.status, refused.body["code"]) == (429, "quota_exceeded")
    assert globex.ended(globex.callback("accept"))["status"] == "SUCCESS"
    acme.cancel_open()
    assert acme.ended(acme.callback("accept"))["status"] == "SUCCESS"


@pytest.mark.parametrize(
    ("behaviour", "status", "said"),
    [("redirect", "FAILED", "302"), ("flood", "SUCCESS", ""), ("close", "FAILED", "410")],
)
def test_a_server_that_misbehaves_ends_its_own_task_with_a_reason(
    platform: CustomerPlatform, behaviour: str, status: str, said: str
) -> None:
    initech = platform.customer("initech")
    found = initech.ended(initech.callback(behaviour, max_attempts=1, target={"timeout": 10}))
    assert found["status"] == status, found
    assert said in found["last_error"]
    if status == "SUCCESS":
        assert found["result"]["truncated"]


def test_a_customer_whose_server_hangs_does_not_delay_the_others(
    platform: CustomerPlatform,
) -> None:
    initech, acme = platform.customer("initech"), platform.customer("acme")
    hanging = [initech.callback("hang", max_attempts=1, target={"timeout": 30}) for _ in range(4)]
    until(lambda: len(initech.received("hang")) == 2, within=WITHIN, message="two callbacks hang")
    for task in [acme.callback("accept") for _ in range(4)]:
        assert acme.ended(task)["status"] == "SUCCESS"
    assert not [task for task in hanging if initech.task(task)["status"] in ("SUCCESS", "FAILED")]
    initech.cancel_open()


@pytest.mark.smoke
def test_no_callback_is_lost_when_a_worker_is_killed(platform: CustomerPlatform) -> None:
    """It is the last test of the file, because the platform does not replace the worker."""
    acme = platform.customer("acme")
    # The first request of each task hangs, so that the worker is killed during a run.
    tasks = [acme.callback("stall", {"number": one}, target={"timeout": 20}) for one in range(2)]
    os.killpg(until(platform.busy_worker, within=WITHIN, message="a worker runs"), signal.SIGKILL)
    assert {acme.ended(task)["status"] for task in tasks} == {"SUCCESS"}
    attempts = [
        one for task in tasks for one in acme.api.get(f"/tasks/{task}/executions").body["data"]
    ]
    assert "LOST" in {attempt["status"] for attempt in attempts}
    arrived = acme.received("stall")
    assert set(tasks) == {request["id"] for request in arrived}
    assert _all_valid(arrived)
