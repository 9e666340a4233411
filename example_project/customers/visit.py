"""What a customer does with the API. At each ``yield`` the other customers have their turn."""

import http
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from billing.accounts import Account, queue_of, signing_secrets

from customers.client import Answer, Client

SETTINGS_APPLY_AFTER = 2.5  # seconds; all processes read notification settings every 2 s
LOOK_EVERY = 1.0
OPEN = ("BLOCKED", "PENDING", "QUEUED", "RUNNING")


@dataclass(frozen=True)
class Callback:
    """A callback to the customer's server; ``options`` are further fields of its target."""

    to: str
    options: Mapping[str, Any] = field(default_factory=dict)
    max_attempts: int = 3


@dataclass(frozen=True)
class Customer:
    """A customer, and how its server behaves."""

    slug: str
    name: str
    callbacks: tuple[Callback, ...]

    @property
    def mailbox(self) -> str:
        """The address for notifications."""
        return f"ops@{self.slug}.example"


CUSTOMERS = (
    Customer("acme", "Acme", (Callback("slow"), Callback("accept"), Callback("close"))),
    Customer("globex", "Globex", (Callback("recover"), Callback("check", {"no_retry_on": [422]}))),
    Customer(
        "initech",
        "Initech",
        (
            Callback("flood"),
            Callback("redirect"),
            Callback("hang", {"timeout": 1}, max_attempts=2),
            Callback("drip", {"timeout": 1}, max_attempts=1),
        ),
    ),
)


def pause(seconds: float) -> Iterator[None]:
    """Yield until this time has passed."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield


class Visit:
    """One customer with its key. The lists record what the report shows."""

    def __init__(self, customer: Customer, account: Account, api: str, server: str) -> None:
        self.customer, self.account = customer, account
        self.api, self.server = Client(api, account.key), Client(server)
        self.url = f"{server}/{customer.slug}"
        self.callbacks: dict[str, str] = {}
        self.messages: list[str] = []
        self.refused: list[str] = []
        self.fixed = ""
        self.problems: list[str] = []

    def steps(self, other: "Visit") -> Iterator[None]:
        """Do everything, one request after the other. ``other`` has tasks that must stay hidden."""
        yield from self._ask_for_notifications()
        yield from pause(SETTINGS_APPLY_AFTER)
        yield from self._schedule()
        yield from self._exceed_the_quota()
        while not other.callbacks:
            yield
        yield from self._look_at(next(iter(other.callbacks.values())))
        for callback in self.customer.callbacks:
            if callback.to == "check":
                yield from self._fix(callback)

    def _ask_for_notifications(self) -> Iterator[None]:
        """Ask for an e-mail and a Slack message per dead letter, and a webhook per success."""
        # Callbacks of one origin share a secret; each notification setting has one of its own.
        secrets = signing_secrets(self.customer.slug, self.url)
        for name, events, kind, config in (
            ("mail", "on_dead_letter", "EMAIL", {"to": [self.customer.mailbox]}),
            ("slack", "on_dead_letter", "SLACK_WEBHOOK", {"url": f"{self.url}/slack"}),
            ("webhook", "on_success", "HTTP_WEBHOOK", {"url": f"{self.url}/webhook"}),
        ):
            body = {"name": name, events: True, "delivery_type": kind, "delivery_config": config}
            setting = self._expect(http.HTTPStatus.CREATED, "/notification-settings", body)
            endpoint = f"notification-setting-{setting['notification_setting_id']}"
            secrets += signing_secrets(self.customer.slug, self.url, endpoint)
            yield
        self.server.put(f"/{self.customer.slug}", secrets)

    def _schedule(self) -> Iterator[None]:
        """Schedule the callbacks, and a message to the queue of the customer."""
        for callback in self.customer.callbacks:
            self.callbacks[callback.to] = self.schedule(callback)
            yield
        config = {"queue": queue_of(self.customer.slug), "body": {"hello": self.customer.name}}
        task = {"target_type": "QUEUE_MESSAGE", "target_config": config}
        self.messages.append(self._expect(http.HTTPStatus.CREATED, "/tasks", task)["task_id"])
        yield

    def schedule(self, callback: Callback) -> str:
        """Schedule a callback and return the id of its task."""
        task = {
            "target_type": "HTTP_CALLBACK",
            "target_config": self._target(callback, {"invoice": 7}),
            "max_attempts": callback.max_attempts,
        }
        created: str = self._expect(http.HTTPStatus.CREATED, "/tasks", task)["task_id"]
        return created

    def _target(self, callback: Callback, body: Mapping[str, int]) -> dict[str, Any]:
        return {"url": f"{self.url}/{callback.to}", "body": body, **callback.options}

    def _exceed_the_quota(self) -> Iterator[None]:
        """Schedule callbacks for tomorrow until the quota of open tasks refuses one; cancel all."""
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        config = {"url": f"{self.url}/accept"}
        body = {"target_type": "HTTP_CALLBACK", "target_config": config, "run_at": tomorrow}
        created = []
        while (answer := self.api.post("/tasks", body)).ok:
            created.append(answer.body["task_id"])
            yield
        self._note_refusal(
            f"task {len(created) + 1} for tomorrow", answer, http.HTTPStatus.TOO_MANY_REQUESTS
        )
        for task_id in created:
            self._expect(http.HTTPStatus.OK, f"/tasks/{task_id}/cancel", {"reason": "quota"})
            yield

    def _look_at(self, task_id: str) -> Iterator[None]:
        """Try to read and to cancel a task of another customer, and to find it in the list."""
        for answer in (
            self.api.get(f"/tasks/{task_id}"),
            self.api.post(f"/tasks/{task_id}/cancel"),
        ):
            self._note_refusal("a task of another customer", answer, http.HTTPStatus.NOT_FOUND)
        yield
        listed = [task["task_id"] for task in self.api.get("/tasks", limit=200).body["data"]]
        if task_id in listed or not set(self.callbacks.values()) <= set(listed):
            self.problems.append("the list of tasks is not that of this customer")
        yield

    def _fix(self, callback: Callback) -> Iterator[None]:
        """Wait until the server has refused a callback, read why, and replay it corrected."""
        path = f"/tasks/{self.callbacks[callback.to]}"
        while self.api.get(path).body["status"] in OPEN:
            yield from pause(LOOK_EVERY)
        answer = self.api.get(f"{path}/deliveries", limit=1).body["data"][0]
        yield
        corrected = self._target(callback, {"invoice": 7, "amount": 4_900})
        reason = "the amount was missing"
        self._expect(
            http.HTTPStatus.OK, f"{path}/replay", {"target_config": corrected, "reason": reason}
        )
        self.fixed = f"{answer['status']} {answer['response_body']}"
        yield

    def _expect(self, status: int, path: str, body: Any) -> Any:
        """Send a POST and return the JSON of the answer; another status is a problem."""
        answer = self.api.post(path, body)
        if answer.status != status:
            self.problems.append(f"POST {path} was answered with {answer.status}: {answer.body}")
            return {"task_id": "", "notification_setting_id": 0}
        return answer.body

    def _note_refusal(self, what: str, answer: Answer, status: int) -> None:
        if answer.status != status:
            self.problems.append(f"{what} was answered with {answer.status} instead of {status}")
        self.refused.append(f"{what}: {answer.status} {answer.body['code']}")
