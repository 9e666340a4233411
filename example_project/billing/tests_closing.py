"""Tests of the closing of a month, from its start to the mail."""

from typing import Any

from django.core import mail

from billing.jobs import closing
from billing.models import Figure, Payment, Statement, Subscription
from billing.tests_recurring import FIRE, JobTestCase
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.testing import drain


class ClosingTests(JobTestCase):
    """One workflow per fire time."""

    def pay(self, amount: int, **given: Any) -> Subscription:
        """Return a subscription of a new customer who paid one invoice."""
        invoice = self.invoice(amount=amount, **given)
        Payment.objects.create(invoice=invoice, idempotency_key=f"key-{invoice.pk}", reference="r")
        return invoice.subscription

    def close(self) -> WorkflowRun:
        """Run the job for FIRE, and all that follows; return the run."""
        self.run_job(closing.close_month)
        found: WorkflowRun = WorkflowRun.objects.filter(parent=None).latest("pk")
        return found

    def test_a_closing_writes_a_statement_for_each_payer_and_tells_the_office(self) -> None:
        first, second = self.pay(900), self.pay(1_100)
        self.invoice()
        run = self.close()
        self.assertEqual((run.status, run.fire_time, run.total), ("SUCCESS", FIRE, 5))
        statements = dict(Statement.objects.values_list("customer", "amount"))
        self.assertEqual(statements, {first.customer_id: 900, second.customer_id: 1_100})
        self.assertEqual(Figure.objects.get(name="revenue of all plans").value, 2_000)
        self.assertEqual(mail.outbox[0].subject, "2026-02 is closed")
        self.assertEqual(mail.outbox[0].body, "2 statements, 20.00 in all.")

    def test_closing_again_replaces_what_was_written(self) -> None:
        self.pay(900)
        self.close()
        self.close()
        self.assertEqual(Statement.objects.count(), 1)

    def test_a_month_in_which_nobody_paid_is_closed_too(self) -> None:
        self.assertEqual(self.close().status, "SUCCESS")
        self.assertEqual(mail.outbox[0].body, "0 statements, 0.00 in all.")

    def test_a_closing_that_fails_tells_the_office(self) -> None:
        closing.report_unclosed.schedule("1")
        drain()
        self.assertIn("could not be closed", mail.outbox[0].subject)
