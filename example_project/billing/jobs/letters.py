"""Jobs that send mails to customers and to the office. The key of a mail is derived from the fire
time, so that a second start is detected.
"""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from billing import mails
from billing.jobs.when import fire_day
from billing.models import Event, Figure, Finding, Subscription
from django_durable_tasks import durable_task
from django_durable_tasks.models import DeadLetter


@durable_task(bind=True, expires_in=timedelta(hours=4))
def send_figures(self: Any, office: str) -> int:
    """Send an office the figures of its day, at most four hours late."""
    day = fire_day(self)
    lines = [str(figure) for figure in Figure.objects.order_by("-taken_at")[:50]]
    mails.send_to_office(
        f"{office}: figures of {day}", "\n".join(lines), key=self.durable.idempotency_key
    )
    return len(lines)


@durable_task(bind=True)
def send_findings(self: Any) -> int:
    """Send the office the findings of the reconciliations; no mail if there are none."""
    lines = [str(finding) for finding in Finding.objects.order_by("pk")[:200]]
    if lines:
        mails.send_to_office(
            f"{len(lines)} findings", "\n".join(lines), key=self.durable.idempotency_key
        )
    return len(lines)


@durable_task(bind=True)
def send_open_dead_letters(self: Any) -> int:
    """Send the office the number of open dead letters."""
    number = DeadLetter.objects.open().count()
    if number:
        mails.send_to_office(
            f"{number} tasks gave up", "See the admin.", key=self.durable.idempotency_key
        )
    return number


@durable_task(bind=True)
def announce_renewals(self: Any, days: int, most: int = 100) -> int:
    """Notify customers that they will be charged in ``days`` days."""
    day = timezone.now() + timedelta(days=days)
    coming = Subscription.objects.filter(
        renews_at__range=(day, day + timedelta(days=1))
    ).select_related("customer")
    subscriptions = list(coming.order_by("pk")[:most])
    for row in subscriptions:
        key = f"{self.durable.idempotency_key}-{row.pk}"
        mails.send(row.customer, "Your renewal", f"We will renew {row} in {days} days.", key=key)
    return len(subscriptions)


@durable_task(bind=True)
def send_events(self: Any, days: int) -> int:
    """Send the office the events of the coming days."""
    coming = Event.objects.filter(
        starts_at__range=(timezone.now(), timezone.now() + timedelta(days=days))
    )
    lines = [
        f"{event.starts_at:%Y-%m-%d %H:%M} {event}" for event in coming.order_by("starts_at")[:100]
    ]
    if lines:
        mails.send_to_office(
            f"Events of {days} days", "\n".join(lines), key=self.durable.idempotency_key
        )
    return len(lines)
