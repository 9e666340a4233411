"""Jobs that record the figures of the business."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum

from billing import actions, outside
from billing.jobs.when import fire_day, fire_time, month_before
from billing.models import Customer, Figure, Finding, Invoice, Payment, Plan, Subscription
from django_durable_tasks import durable_task
from django_durable_tasks.models import DeadLetter, Task

FIGURES: dict[str, Callable[[], int]] = {
    "customers": Customer.objects.count,
    "subscriptions": Subscription.objects.count,
    "open invoices": Invoice.objects.filter(state=Invoice.State.OPEN).count,
    "overdue cents": lambda: _cents(state=Invoice.State.OVERDUE),
    "paid cents": lambda: _cents(state=Invoice.State.PAID),
    "payments": Payment.objects.count,
    "findings": Finding.objects.count,
    "waiting tasks": Task.objects.filter(status="PENDING").count,
    "dead letters": DeadLetter.objects.open().count,
}
PERIODS: dict[str, Callable[[datetime], str]] = {
    "minute": lambda at: f"{at:%Y-%m-%dT%H:%M:%S}",
    "day": lambda at: f"{at:%Y-%m-%d}",
    "month": lambda at: f"{at:%Y-%m}",
    "quarter": lambda at: f"{at:%Y}-Q{(at.month + 2) // 3}",
    "year": lambda at: f"{at:%Y}",
}


@durable_task(bind=True)
def take_figure(self: Any, name: str, period: str = "day") -> int:
    """Record a figure for the period of the fire time."""
    return _take(name, PERIODS[period](fire_time(self)), FIGURES[name]())


@durable_task(bind=True)
def close_books(self: Any, period: str) -> int:
    """Record the revenue up to the end of a month, quarter or year."""
    return _take(
        f"revenue of the {period}",
        PERIODS[period](fire_time(self)),
        _cents(state=Invoice.State.PAID),
    )


@durable_task(bind=True)
def report_usage_of(self: Any, plan: str) -> str:
    """Schedule the usage report of a plan for the month before the fire time; requested twice it is
    created once.
    """
    month = f"{month_before(fire_day(self)):%Y-%m}"
    for found in Plan.objects.filter(name=plan):
        actions.report_usage(found, month)
    return month


@durable_task(bind=True)
def read_feed_in(self: Any, site: str) -> int:
    """Read the meter of the panels on a customer's roof, at a time that depends on the sun."""
    return _take(
        f"feed-in of {site}",
        PERIODS["minute"](fire_time(self)),
        outside.feed_in(site, fire_day(self)),
    )


@durable_task(bind=True)
def look_for_gaps(self: Any, name: str) -> int:
    """Record a finding if a figure of the previous day is missing."""
    day = fire_day(self) - timedelta(days=1)
    if Figure.objects.filter(name=name, period=f"{day}").exists():
        return 0
    Finding.objects.get_or_create(check_name="a figure is missing", subject=f"{name} {day}")
    return 1


def _take(name: str, period: str, value: int) -> int:
    Figure.objects.update_or_create(name=name, period=period, defaults={"value": value})
    return value


def _cents(**which: Any) -> int:
    return Invoice.objects.filter(**which).aggregate(sum=Sum("amount"))["sum"] or 0
