"""The actions of the site. Each is one transaction, which also creates its background tasks."""

from datetime import datetime, timedelta

from django.db import transaction

from billing.models import Customer, Event, Plan, Post, Subscription
from billing.tasks import build_usage_report, publish_post, renew_subscription, send_event_reminder
from django_durable_tasks.models import Task


def renew(subscription: Subscription) -> Task:
    """Schedule the renewal of a subscription; requested twice in one period, it is renewed once."""
    key = f"renew-{subscription.pk}-{subscription.period + 1}"
    return renew_subscription.using(idempotency_key=key).schedule(subscription.pk)


@transaction.atomic
def plan_event(
    host: Customer, title: str, starts_at: datetime, remind_before: timedelta = timedelta(hours=1)
) -> Event:
    """Create an event with its reminder."""
    event = Event.objects.create(
        host=host, title=title, starts_at=starts_at, remind_before=remind_before
    )
    _remind(event)
    return event


@transaction.atomic
def move_event(event: Event, starts_at: datetime) -> Task:
    """Move an event; its reminder moves with it."""
    event.starts_at = starts_at
    event.save(update_fields=["starts_at"])
    return _remind(event)


def _remind(event: Event) -> Task:
    return send_event_reminder.using(key=event.reminder_key, run_at=event.remind_at).schedule(
        event.pk
    )


@transaction.atomic
def write_post(title: str, publish_at: datetime) -> Task:
    """Create a post that is published at its time."""
    post = Post.objects.create(title=title, publish_at=publish_at)
    return publish_post.using(run_at=publish_at).schedule(post.pk)


def report_usage(plan: Plan, month: str) -> Task:
    """Schedule the usage report of a month; a report that is requested twice is created once."""
    return build_usage_report.using(idempotency_key=f"usage-{plan.pk}-{month}").schedule(
        plan.pk, month
    )
