"""The data of the platform: customers and their subscriptions, invoices and payments, events and
posts, and its books.

Amounts are in cents. Methods that change more than one row document the transaction that they
require.
"""

from datetime import datetime, timedelta
from typing import ClassVar, Self

from django.db import models
from django.db.models import F
from django.utils import timezone

PERIOD = timedelta(days=30)


class Plan(models.Model):
    """A plan to which customers subscribe."""

    name = models.CharField(max_length=50, unique=True)
    price = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.name


class Card(models.TextChoices):
    """How the payment gateway of this example treats a customer's card."""

    GOOD = "good"
    DECLINED = "declined"
    BANK_DOWN = "bank down"


class Customer(models.Model):
    """A customer."""

    name = models.CharField(max_length=100)
    email = models.EmailField()
    card = models.CharField(max_length=10, choices=Card, default=Card.GOOD)

    def __str__(self) -> str:
        return self.name


class SubscriptionQuerySet(models.QuerySet["Subscription"]):
    """The queryset of subscriptions."""

    def due(self, now: datetime) -> Self:
        """Subscriptions whose period is over, the longest overdue first."""
        return self.filter(renews_at__lte=now).order_by("renews_at", "pk")


class Subscription(models.Model):
    """A customer's plan, and how often it was renewed."""

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="subscriptions")
    plan = models.ForeignKey(Plan, models.PROTECT)
    period = models.PositiveIntegerField(default=0)
    renews_at = models.DateTimeField(db_index=True)

    objects = SubscriptionQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.customer}: {self.plan}"

    def renew(self) -> None:
        """Move to the next period. The addition is not idempotent, so it is called in an atomic
        task only.
        """
        self.period = F("period") + 1
        self.renews_at = F("renews_at") + PERIOD
        self.save(update_fields=["period", "renews_at"])
        self.refresh_from_db()


class Invoice(models.Model):
    """The amount of one period of one subscription; the constraint makes issuing idempotent."""

    class State(models.TextChoices):
        """The status of an invoice."""

        OPEN = "open"
        PAID = "paid"
        OVERDUE = "overdue"

    subscription = models.ForeignKey(Subscription, models.CASCADE, related_name="invoices")
    period = models.PositiveIntegerField()
    amount = models.PositiveIntegerField()
    state = models.CharField(max_length=7, choices=State, default=State.OPEN)
    issued_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["subscription", "period"], name="one_invoice_a_period")
        ]

    def __str__(self) -> str:
        return f"Invoice {self.pk}"


class Payment(models.Model):
    """Money that the gateway received for an invoice, with the key of the request."""

    invoice = models.ForeignKey(Invoice, models.CASCADE, related_name="payments")
    idempotency_key = models.CharField(max_length=200, unique=True)
    reference = models.CharField(max_length=50)
    paid_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"Payment {self.reference}"


class UsageReport(models.Model):
    """The usage of the customers of a plan in a month."""

    plan = models.ForeignKey(Plan, models.CASCADE)
    month = models.CharField(max_length=7)
    units = models.PositiveIntegerField()
    built_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["plan", "month"], name="one_report_a_month")
        ]

    def __str__(self) -> str:
        return f"{self.plan} {self.month}"


class Event(models.Model):
    """Something that begins at a time, with a reminder for the customer."""

    title = models.CharField(max_length=100)
    host = models.ForeignKey(Customer, models.CASCADE, related_name="events")
    starts_at = models.DateTimeField()
    remind_before = models.DurationField()

    def __str__(self) -> str:
        return self.title

    @property
    def remind_at(self) -> datetime:
        """When the reminder is sent."""
        return self.starts_at - self.remind_before

    @property
    def reminder_key(self) -> str:
        """The key of its reminder: scheduling with the same key moves the reminder."""
        return f"event-{self.pk}-reminder"


class Post(models.Model):
    """Something to publish at a time; a late publication is better than none."""

    title = models.CharField(max_length=100)
    publish_at = models.DateTimeField()
    published_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.title

    def publish(self) -> None:
        """Publish once; a repetition has no effect."""
        Post.objects.filter(pk=self.pk, published_at=None).update(published_at=timezone.now())


class Statement(models.Model):
    """The payments of a customer up to the closing of a month; closing it again replaces
    the row.
    """

    customer = models.ForeignKey(Customer, models.CASCADE, related_name="statements")
    month = models.CharField(max_length=7)
    amount = models.PositiveIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["customer", "month"], name="one_statement_a_month")
        ]

    def __str__(self) -> str:
        return f"{self.customer} {self.month}"


class ExchangeRate(models.Model):
    """The rate of a currency on a day, in euros."""

    currency = models.CharField(max_length=3)
    day = models.DateField()
    rate = models.DecimalField(max_digits=12, decimal_places=6)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["currency", "day"], name="one_rate_a_day")
        ]

    def __str__(self) -> str:
        return f"{self.currency} {self.day}: {self.rate}"


class Figure(models.Model):
    """A figure of the business, one for each period; recording it again replaces it."""

    name = models.CharField(max_length=100)
    period = models.CharField(max_length=30)
    value = models.BigIntegerField()
    taken_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["name", "period"], name="one_figure_a_period")
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.period}: {self.value}"


class Finding(models.Model):
    """A result of a reconciliation that a person must look at; found again it is still one row."""

    check_name = models.CharField(max_length=50)
    subject = models.CharField(max_length=100)
    found_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["check_name", "subject"], name="one_finding")
        ]

    def __str__(self) -> str:
        return f"{self.check_name}: {self.subject}"


class GatewayCharge(models.Model):
    """The gateway's ledger (in reality an external system): one charge for each key."""

    idempotency_key = models.CharField(max_length=200, unique=True)
    invoice_number = models.PositiveBigIntegerField(db_index=True)
    amount = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"ch_{self.pk}"
