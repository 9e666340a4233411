"""Jobs that move money, or reconcile it."""

from datetime import timedelta
from typing import Any

from django.db.models import Count, F
from django.utils import timezone

from billing import actions, outside
from billing.jobs.when import fire_day
from billing.models import ExchangeRate, Finding, GatewayCharge, Invoice, Payment, Subscription
from billing.tasks import charge_payment, send_dunning_mail
from django_durable_tasks import durable_task


@durable_task
def renew_due(most: int = 100) -> int:
    """Schedule the renewal of due subscriptions; the key of a renewal is its period, so that each
    is renewed once.
    """
    return len(
        [
            actions.renew(subscription)
            for subscription in Subscription.objects.due(timezone.now())[:most]
        ]
    )


@durable_task
def charge_forgotten(most: int = 100) -> int:
    """Charge invoices that have been open for a day, with the key of the first charge."""
    old = Invoice.objects.filter(
        state=Invoice.State.OPEN, issued_at__lt=timezone.now() - timedelta(days=1)
    )
    numbers = list(old.order_by("pk").values_list("pk", flat=True)[:most])
    for number in numbers:
        charge_payment.using(idempotency_key=f"charge-invoice-{number}").schedule(number)
    return len(numbers)


@durable_task
def dun(level: str, days: int, most: int = 100) -> int:
    """Remind of invoices that are overdue for ``days`` days, once for each level."""
    old = Invoice.objects.filter(
        state=Invoice.State.OVERDUE, issued_at__lt=timezone.now() - timedelta(days=days)
    )
    numbers = list(old.order_by("pk").values_list("pk", flat=True)[:most])
    for number in numbers:
        send_dunning_mail.using(idempotency_key=f"dun-{level}-{number}").schedule(number)
    return len(numbers)


@durable_task(bind=True, max_attempts=8)
def fetch_rate(self: Any, currency: str) -> str:
    """Record the rate of a currency on the day of the fire time, also if the job is late."""
    day = fire_day(self)
    rate = outside.exchange_rate(currency, day)
    ExchangeRate.objects.update_or_create(currency=currency, day=day, defaults={"rate": rate})
    return str(rate)


@durable_task
def match_charges() -> int:
    """Find charges of the gateway without a payment in our books."""
    known = Payment.objects.values("idempotency_key")
    settled = timezone.now() - timedelta(hours=1)
    stray = GatewayCharge.objects.exclude(idempotency_key__in=known)
    stray = stray.exclude(
        invoice_number__in=Invoice.objects.filter(issued_at__gte=settled).values("pk")
    )
    return _found("a charge without payment", [str(charge) for charge in stray])


@durable_task
def match_payments() -> int:
    """Find invoices that are paid without a payment."""
    unpaid = Invoice.objects.filter(state=Invoice.State.PAID, payments=None)
    return _found("paid without payment", [str(invoice) for invoice in unpaid])


@durable_task
def match_periods() -> int:
    """Find subscriptions that have more invoices than periods."""
    counted = Subscription.objects.annotate(number=Count("invoices")).filter(number__gt=F("period"))
    return _found("more invoices than periods", [f"Subscription {row.pk}" for row in counted])


def _found(check: str, subjects: list[str]) -> int:
    findings = [Finding(check_name=check, subject=subject) for subject in subjects]
    Finding.objects.bulk_create(findings, ignore_conflicts=True)
    return len(findings)
