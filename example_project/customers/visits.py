"""The visits of all customers, in turns, and what they received, read after the last task."""

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from billing.accounts import open_account, queue_of
from config.celery import app
from django.conf import settings

from customers.client import Client
from customers.visit import CUSTOMERS, Customer, Visit
from django_durable_tasks.models import Task


@dataclass(frozen=True)
class Inbox:
    """What one customer received: requests to its server, messages of its queue, e-mails."""

    requests: list[dict[str, Any]]
    messages: int
    mails: int

    def count(self, *paths: str) -> int:
        """Return how many requests arrived at these paths."""
        return sum(request["to"] in paths for request in self.requests)

    @property
    def unsigned(self) -> int:
        """How many requests had no valid signature."""
        return sum(request["signature"] != "valid" for request in self.requests)


class Visits:
    """Opens the accounts of all customers and lets each do one step in turn."""

    def __init__(self, api: str) -> None:
        self.visits = [
            Visit(customer, open_account(customer.slug, customer.name), api, server_address())
            for customer in CUSTOMERS
        ]
        for visit in self.visits:
            read_queue(queue_of(visit.customer.slug))
        self.inboxes: dict[str, Inbox] = {}
        self._running = deque(
            visit.steps(self.visits[number - 1]) for number, visit in enumerate(self.visits)
        )

    @property
    def done(self) -> bool:
        """Whether every customer has done everything."""
        return not self._running

    def step(self) -> None:
        """Let the next customer do its next step."""
        if self._running:
            steps = self._running.popleft()
            with suppress(StopIteration):
                next(steps)
                self._running.append(steps)

    def collect(self) -> None:
        """Read what the customers received; call it once, after the last task has ended."""
        for visit in self.visits:
            self.inboxes[visit.customer.slug] = inbox(visit.customer)

    def problems(self) -> Iterator[str]:
        """Yield what a customer would complain about."""
        for visit in self.visits:
            found, name = self.inboxes[visit.customer.slug], visit.customer.name
            yield from (f"{name}: {problem}" for problem in visit.problems)
            missing = [
                callback.to for callback in visit.customer.callbacks if not found.count(callback.to)
            ]
            yield from (f"{name}: no callback to {to} arrived" for to in missing)
            if found.unsigned:
                yield f"{name}: {found.unsigned} requests had no valid signature"
            if not (found.messages and found.mails and found.count("slack")):
                yield f"{name}: a message, an e-mail or a Slack notification did not arrive"
            if not found.count("webhook"):
                yield f"{name}: no webhook notification arrived"


def server_address() -> str:
    """Return the address of the server that simulates those of the customers."""
    return f"http://127.0.0.1:{settings.CUSTOMERS_PORT}"


def inbox(customer: Customer) -> Inbox:
    """Read what a customer received, and empty its queue."""
    requests = Client(server_address()).get(f"/{customer.slug}").body
    return Inbox(requests, read_queue(queue_of(customer.slug)), mails_to(customer.mailbox))


def read_queue(name: str) -> int:
    """Declare a queue and take all its messages, as a program without Celery would; return how
    many.
    """
    with app.connection_for_read() as connection, connection.SimpleQueue(name) as queue:
        messages = 0
        while queue.qsize():
            queue.get(block=False).ack()
            messages += 1
        return messages


def mails_to(address: str) -> int:
    """Return how many e-mails were sent to an address."""
    folder = Path(settings.MAIL_FOLDER)
    files = folder.glob("*.log") if folder.is_dir() else ()
    return sum(file.read_text(errors="replace").count(f"\nTo: {address}\n") for file in files)


def report(visits: Visits) -> Iterator[str]:
    """Yield what each customer scheduled, received, and was refused."""
    yield "Customers of the HTTP API, each with an API key of its own"
    for visit in visits.visits:
        found = visits.inboxes[visit.customer.slug]
        yield ""
        yield f"  {visit.customer.name:<10}scheduled  {_scheduled(visit)}"
        yield (
            f"            received   {found.count(*visit.callbacks)} callbacks, {found.messages}"
            f" message in {queue_of(visit.customer.slug)};"
            f" {len(found.requests) - found.unsigned} of {len(found.requests)} signatures valid"
        )
        yield (
            f"            notified   {found.mails} e-mails, {found.count('slack')} in Slack,"
            f" {found.count('webhook')} webhooks"
        )
        for refused, times in Counter(visit.refused).items():
            yield f"            refused    {refused}{f' ({times} times)' if times > 1 else ''}"
        if visit.fixed:
            yield f"            replayed   after the answer {visit.fixed}"


def _scheduled(visit: Visit) -> str:
    tasks = Task.objects.in_bulk(visit.callbacks.values())
    status = {str(task_id): task.status for task_id, task in tasks.items()}
    by_path = {to: status.get(task_id, "?") for to, task_id in visit.callbacks.items()}
    callbacks = ", ".join(f"{to} {one}" for to, one in by_path.items())
    return f"{len(by_path)} callbacks ({callbacks}), {len(visit.messages)} message"
