"""The background tasks of the platform.

A task function may be started more than once (its worker may die at any statement), so each
docstring states why that is harmless: `atomic`, where adding twice would be wrong; a unique
constraint; or the idempotency key, which is passed to external systems.
"""

from datetime import timedelta
from typing import Any

from billing import mails, outside
from billing.models import Event, Invoice, Payment, Post, Subscription, UsageReport
from django_durable_tasks import Schedule, durable_task


@durable_task(atomic=True)
def renew_subscription(subscription_id: int) -> Schedule:
    """Begin the next period. The function and its success are one transaction: the period moves
    once, independent of the number of starts.
    """
    subscription = Subscription.objects.select_for_update().get(pk=subscription_id)
    subscription.renew()
    return Schedule(issue_invoice, (subscription_id, subscription.period))


@durable_task
def issue_invoice(subscription_id: int, period: int) -> Schedule:
    """Write the invoice of a period. The constraint on (subscription, period) makes a second start
    harmless.
    """
    subscription = Subscription.objects.select_related("plan").get(pk=subscription_id)
    invoice, _ = Invoice.objects.get_or_create(
        subscription=subscription, period=period, defaults={"amount": subscription.plan.price}
    )
    return Schedule(
        charge_payment, (invoice.pk,), options={"idempotency_key": f"charge-invoice-{invoice.pk}"}
    )


@durable_task(
    bind=True, priority=5, max_attempts=4, retry_for=(outside.GatewayUnavailable,), timeout=30
)
def charge_payment(self: Any, invoice_id: int) -> Schedule:
    """Charge an invoice. The gateway receives the idempotency key, the same for every attempt and
    replay, and charges it once.

    An unreachable bank is tried four times, then a dead letter is opened. A declined card is not an
    error: the customer is notified.
    """
    invoice = Invoice.objects.select_related("subscription__customer").get(pk=invoice_id)
    key = self.durable.idempotency_key
    try:
        reference = outside.charge(
            card=invoice.subscription.customer.card,
            invoice_number=invoice.pk,
            amount=invoice.amount,
            idempotency_key=key,
            attempt=self.durable.attempt,
        )
    except outside.CardDeclined:
        Invoice.objects.filter(pk=invoice_id).update(state=Invoice.State.OVERDUE)
        return Schedule(send_dunning_mail, (invoice_id,))
    Payment.objects.get_or_create(
        idempotency_key=key, defaults={"invoice": invoice, "reference": reference}
    )
    Invoice.objects.filter(pk=invoice_id).update(state=Invoice.State.PAID)
    return Schedule(send_receipt, (invoice_id,))


@durable_task(bind=True)
def send_receipt(self: Any, invoice_id: int) -> None:
    """Send a receipt for a payment."""
    invoice = Invoice.objects.select_related("subscription__customer").get(pk=invoice_id)
    text = f"Thank you for {invoice.amount / 100:.2f}."
    mails.send(
        invoice.subscription.customer, f"{invoice}: paid", text, key=self.durable.idempotency_key
    )


@durable_task(bind=True, expires_in=timedelta(days=3))
def send_dunning_mail(self: Any, invoice_id: int) -> None:
    """Send a reminder of an overdue invoice. It expires after three days without a worker."""
    invoice = Invoice.objects.select_related("subscription__customer").get(pk=invoice_id)
    if invoice.state == Invoice.State.PAID:
        return
    text = f"Please pay {invoice.amount / 100:.2f}."
    mails.send(
        invoice.subscription.customer, f"{invoice}: overdue", text, key=self.durable.idempotency_key
    )


@durable_task(bind=True, timeout=300, expected_duration=60)
def build_usage_report(self: Any, plan_id: int, month: str) -> dict[str, int]:
    """Compute the report of a month, page by page: reports its progress, and stops on
    cancellation.
    """
    units = 0
    for page in range(outside.PAGES):
        self.durable.check()
        units += outside.metered(plan_id, month, page)
        self.durable.progress(page + 1, outside.PAGES, "pages of meter readings")
    UsageReport.objects.update_or_create(plan_id=plan_id, month=month, defaults={"units": units})
    return {"units": units}


@durable_task(bind=True, expires_in=timedelta(minutes=30))
def send_event_reminder(self: Any, event_id: int) -> None:
    """Remind the host. Scheduled with the event's key, so that there is one reminder, which moves
    with the event.
    """
    event = Event.objects.select_related("host").get(pk=event_id)
    text = f"{event} begins at {event.starts_at:%H:%M:%S}."
    mails.send(event.host, f"Reminder: {event}", text, key=self.durable.idempotency_key)


@durable_task
def publish_post(post_id: int) -> None:
    """Publish a post. It has no expiry: a post is published late rather than never."""
    Post.objects.get(pk=post_id).publish()
