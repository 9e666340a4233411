"""The business of the platform, step by step: the same in every run, apart from the time of day."""

import itertools
import uuid
from datetime import timedelta

from billing import actions
from billing.models import Card, Customer, Event, Plan, Subscription
from billing.tasks import send_dunning_mail
from django.db import transaction
from django.utils import timezone

from django_durable_tasks.models import Task

RENEWALS = 2


class _ChangedMind(Exception):
    """The transaction is to be rolled back."""


class Workload:
    """Creates work, and records each task that was committed, and each that was rolled back."""

    def __init__(self) -> None:
        self.committed: set[uuid.UUID] = set()
        self.rolled_back: set[uuid.UUID] = set()
        self._plans = list(Plan.objects.order_by("pk"))
        self._hosts = list(Customer.objects.order_by("pk")[:50])
        self._due = Subscription.objects.due(timezone.now())
        self._good = iter(
            list(self._due.filter(customer__card=Card.GOOD).values_list("pk", flat=True))
        )
        self._events: list[Event] = []

    def step(self, number: int) -> None:
        """Do one step of business."""
        self._renew(self._next_due(RENEWALS))
        if number == 0:
            self._renew_troubled()
        if number % 3 == 0:
            self._note(
                actions.write_post(
                    f"Post {number}", timezone.now() + timedelta(seconds=1 + number % 5)
                )
            )
        if number % 4 == 0:
            self._plan_event(number)
        if number % 8 == 7:
            self._note(
                actions.move_event(
                    self._events[-1], self._events[-1].starts_at + timedelta(seconds=4)
                )
            )
        if number % 6 == 2:
            plan = self._plans[number // 6 % len(self._plans)]
            self._note(
                actions.report_usage(plan, f"{timezone.now().year - 1}-{1 + number // 6 % 12:02d}")
            )
        if number == 5:
            self._change_mind()
        if number == 10:
            self._send_too_late()

    def _note(self, task: Task) -> None:
        self.committed.add(task.pk)

    def _next_due(self, number: int) -> list[Subscription]:
        return list(Subscription.objects.filter(pk__in=list(itertools.islice(self._good, number))))

    def _renew(self, subscriptions: list[Subscription]) -> None:
        with transaction.atomic():
            tasks = [actions.renew(subscription) for subscription in subscriptions]
        self.committed.update(task.pk for task in tasks)

    def _renew_troubled(self) -> None:
        """Create two customers whose bank is unavailable, and two whose card is declined."""
        for card in (Card.BANK_DOWN, Card.DECLINED):
            self._renew(list(self._due.filter(customer__card=card)[:2]))

    def _plan_event(self, number: int) -> None:
        host = self._hosts[number % len(self._hosts)]
        starts_at = timezone.now() + timedelta(seconds=6)
        event = actions.plan_event(
            host, f"Event {number}", starts_at, remind_before=timedelta(seconds=2)
        )
        self._events.append(event)
        self._note(Task.objects.get(key=event.reminder_key))

    def _change_mind(self) -> None:
        """Create tasks and roll the transaction back."""
        try:
            with transaction.atomic():
                late = list(self._due.order_by("-pk")[:10])
                self.rolled_back.update(actions.renew(subscription).pk for subscription in late)
                raise _ChangedMind
        except _ChangedMind:
            return

    def _send_too_late(self) -> None:
        """Create reminders that an outage delayed for so long that they have expired."""
        for _ in range(3):
            self._note(
                send_dunning_mail.using(expires_at=timezone.now() - timedelta(minutes=1)).schedule(
                    1
                )
            )
