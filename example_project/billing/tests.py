"""Tests of the tasks, which the testing kit runs."""

from datetime import timedelta
from unittest import mock

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core import mail
from django.db import transaction
from django.test import TestCase
from django.urls import reverse
from django.utils import timezone

from billing import actions, factories, outside
from billing.models import (
    Card,
    Customer,
    Event,
    GatewayCharge,
    Invoice,
    Plan,
    Post,
    Subscription,
    UsageReport,
)
from django_durable_tasks.models import Task
from django_durable_tasks.testing import drain


class BillingTestCase(TestCase):
    """Three plans, and external systems without delays and errors."""

    @classmethod
    def setUpTestData(cls) -> None:
        factories.begin()
        factories.PlanFactory.create_batch(3)

    def setUp(self) -> None:
        outside_today = mock.patch.multiple(
            outside, GATEWAY_SECONDS=0, METER_SECONDS=0, FAILS_BEFORE=0, FAILS_AFTER=0
        )
        outside_today.start()
        self.addCleanup(outside_today.stop)

    def subscribe(self, card: str = Card.GOOD) -> Subscription:
        """Return a subscription that is due, of a new customer with such a card."""
        customer = factories.CustomerFactory(card=card)
        return factories.SubscriptionFactory(customer=customer, plan=Plan.objects.first())


class RenewalTests(BillingTestCase):
    """From the renewal to the receipt."""

    def test_a_renewal_ends_in_an_invoice_a_charge_and_a_receipt(self) -> None:
        subscription = self.subscribe()
        actions.renew(subscription)
        drain()
        invoice = Invoice.objects.get(subscription=subscription, period=1)
        self.assertEqual(invoice.state, Invoice.State.PAID)
        self.assertEqual(GatewayCharge.objects.get().invoice_number, invoice.pk)
        self.assertEqual([message.to for message in mail.outbox], [[subscription.customer.email]])

    def test_a_subscription_renewed_twice_in_one_period_moves_once(self) -> None:
        subscription = self.subscribe()
        self.assertEqual(actions.renew(subscription), actions.renew(subscription))
        drain()
        subscription.refresh_from_db()
        self.assertEqual(subscription.period, 1)

    def test_a_declined_card_ends_in_a_dunning_mail(self) -> None:
        actions.renew(self.subscribe(Card.DECLINED))
        drain()
        self.assertEqual(Invoice.objects.get().state, Invoice.State.OVERDUE)
        self.assertIn("overdue", mail.outbox[0].subject)
        self.assertEqual(set(Task.objects.values_list("status", flat=True)), {"SUCCESS"})

    def test_a_bank_that_is_down_is_asked_again_later(self) -> None:
        actions.renew(self.subscribe(Card.BANK_DOWN))
        drain(retries=False)
        charge = Task.objects.get(name="billing.tasks.charge_payment")
        self.assertEqual((charge.status, charge.failures), ("PENDING", 1))
        self.assertGreater(charge.next_attempt_at, timezone.now())

    def test_a_renewal_that_is_rolled_back_leaves_nothing(self) -> None:
        subscription = self.subscribe()
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            actions.renew(subscription)
            _ = 1 / 0
        self.assertFalse(Task.objects.exists())


class GatewayTests(BillingTestCase):
    """No response is the worst response: the money moved, and the gateway did not report it."""

    def test_a_key_is_charged_once_although_the_first_answer_was_lost(self) -> None:
        call = {
            "card": Card.GOOD,
            "invoice_number": 1,
            "amount": 900,
            "idempotency_key": "charge-invoice-1",
        }
        with (
            mock.patch.object(outside, "FAILS_AFTER", 100),
            self.assertRaises(outside.GatewayUnavailable),
        ):
            outside.charge(**call, attempt=1)
        self.assertEqual(outside.charge(**call, attempt=2), str(GatewayCharge.objects.get()))


class CalendarTests(BillingTestCase):
    """Tasks with a time."""

    def test_a_reminder_moves_with_its_event(self) -> None:
        starts_at = timezone.now() + timedelta(days=2)
        event = actions.plan_event(factories.CustomerFactory(), "Launch", starts_at)
        actions.move_event(event, starts_at + timedelta(days=1))
        reminder = Task.objects.get()
        self.assertEqual(reminder.run_at, starts_at + timedelta(days=1) - timedelta(hours=1))

    def test_a_reminder_is_sent_to_the_host(self) -> None:
        host = factories.CustomerFactory()
        actions.plan_event(host, "Launch", timezone.now() + timedelta(hours=1))
        drain()
        self.assertEqual(mail.outbox[0].to, [host.email])

    def test_a_post_is_published_late_rather_than_never(self) -> None:
        actions.write_post("News", timezone.now() - timedelta(days=1))
        drain()
        self.assertIsNotNone(Post.objects.get().published_at)

    def test_a_report_adds_up_all_pages(self) -> None:
        actions.report_usage(Plan.objects.first(), "2026-10")
        drain()
        report = UsageReport.objects.get()
        self.assertEqual(Task.objects.get().result, {"units": report.units})


class SiteTests(BillingTestCase):
    """The pages."""

    def test_every_page_of_the_admin_opens(self) -> None:
        self.client.force_login(
            get_user_model().objects.create_superuser("admin", password="admin")
        )
        self.subscribe()
        for model in admin.site._registry:
            name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
            with self.subTest(page=name):
                self.assertEqual(self.client.get(reverse(name)).status_code, 200)

    def test_the_buttons_of_the_overview_work(self) -> None:
        subscription = self.subscribe()
        event = actions.plan_event(
            Customer.objects.get(), "Launch", timezone.now() + timedelta(days=1)
        )
        self.assertContains(self.client.get("/"), "Renew")
        self.client.post(reverse("renew", args=[subscription.pk]))
        drain()
        self.client.post(reverse("move-event", args=[event.pk]))
        self.assertEqual(Invoice.objects.count(), 1)
        self.assertEqual(Event.objects.get().starts_at, event.starts_at + timedelta(days=1))
