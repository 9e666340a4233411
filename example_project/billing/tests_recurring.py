"""Tests of the recurring jobs: each can be declared and will fire, and each has the same effect
when started once or twice.
"""

import uuid
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from django.core import mail
from django.core.management import call_command
from django.test import TestCase
from django.utils import timezone
from supervision import fires

from billing import factories, outside, schedules
from billing.cadence import quick
from billing.jobs import figures, housekeeping, letters, money
from billing.models import (
    Card,
    Event,
    ExchangeRate,
    Figure,
    Finding,
    GatewayCharge,
    Invoice,
    Plan,
    Post,
    Subscription,
)
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.testing import drain, fire, travel

FIRE = datetime(2026, 3, 8, 7, tzinfo=UTC)


class ScheduleTests(TestCase):
    """The table of schedules."""

    def test_fifty_jobs_are_declared_and_each_will_fire(self) -> None:
        rows = schedules.sync()
        self.assertEqual(len(rows), 50)
        self.assertEqual([row.name for row in rows if row.next_run_at is None], [])

    def test_declaring_again_changes_nothing_and_keeps_a_pause(self) -> None:
        row = schedules.sync()[0]
        row.pause("not this week", by="anna")
        before = dict(RecurringTask.objects.values_list("name", "revision"))
        schedules.sync()
        self.assertEqual(dict(RecurringTask.objects.values_list("name", "revision")), before)
        self.assertEqual(RecurringTask.objects.get(pk=row.pk).status_reason, "not this week")

    def test_every_kind_of_schedule_and_every_overlap_policy_is_there(self) -> None:
        given = schedules.SCHEDULES.values()
        kinds = {"interval", "cron", "rrule", "solar", "every"}
        self.assertEqual(
            [kind for kind in sorted(kinds) if not any(kind in one for one in given)], []
        )
        policies = {"ALLOW", "SKIP", "QUEUE_ONE", "QUEUE_ALL", "CANCEL_RUNNING", "REPLACE_PENDING"}
        self.assertEqual({one["overlap"] for one in given if "overlap" in one}, policies)

    def test_in_the_demo_each_job_fires_within_seven_seconds(self) -> None:
        for name, given in quick(schedules.SCHEDULES).items():
            began = timezone.now()
            row = RecurringTask.objects.upsert(name=name, **given)
            self.assertLess(row.next_run_at, began + timedelta(seconds=9), name)


class JobTestCase(TestCase):
    """Jobs are fired and run by the testing kit, and external systems have no delays and errors."""

    @classmethod
    def setUpTestData(cls) -> None:
        factories.begin()
        factories.PlanFactory.create_batch(3)

    def setUp(self) -> None:
        quickly = mock.patch.multiple(
            outside, GATEWAY_SECONDS=0, METER_SECONDS=0, FAILS_BEFORE=0, FAILS_AFTER=0
        )
        quickly.start()
        self.addCleanup(quickly.stop)

    def run_job(self, job: Any, *args: Any, zone: str = "UTC", times: int = 1) -> Any:
        """Fire a job at FIRE, ``times`` times, and run it; return its last result."""
        for _ in range(times):
            with travel(FIRE - timedelta(days=1)):
                row = RecurringTask.objects.upsert(
                    name=f"test-{uuid.uuid4()}", task=job, args=args, at=[FIRE], timezone=zone
                )
            task = fire(row, at=FIRE)
            drain(now=FIRE)
        task.refresh_from_db()
        self.assertEqual(task.status, "SUCCESS", task.last_error)
        return task.result

    def subscription(self, card: str = Card.GOOD, **given: Any) -> Subscription:
        """Return a subscription of a new customer with such a card."""
        customer = factories.CustomerFactory(card=card)
        return factories.SubscriptionFactory(customer=customer, plan=Plan.objects.first(), **given)

    def invoice(self, days: int = 0, **given: Any) -> Invoice:
        """Return an invoice that was issued ``days`` days ago."""
        invoice = Invoice.objects.create(
            **{"subscription": self.subscription(), "period": 1, "amount": 900} | given
        )
        Invoice.objects.filter(pk=invoice.pk).update(
            issued_at=timezone.now() - timedelta(days=days, minutes=1)
        )
        return invoice


class JobTests(JobTestCase):
    """The effect of each job."""

    def test_due_subscriptions_are_renewed_once(self) -> None:
        due, later = (
            self.subscription(),
            self.subscription(renews_at=timezone.now() + timedelta(days=1)),
        )
        self.assertEqual(self.run_job(money.renew_due, 10), 1)
        self.assertEqual(self.run_job(money.renew_due, 10), 0)
        periods = dict(Subscription.objects.values_list("pk", "period"))
        self.assertEqual(periods, {due.pk: 1, later.pk: 0})

    def test_a_forgotten_invoice_is_charged_under_its_first_key(self) -> None:
        invoice = self.invoice(days=2)
        self.invoice()
        self.assertEqual([self.run_job(money.charge_forgotten) for _ in range(2)], [1, 0])
        charge = Task.objects.get(name="billing.tasks.charge_payment")
        self.assertEqual(charge.idempotency_key, f"charge-invoice-{invoice.pk}")

    def test_a_customer_is_dunned_once_a_level(self) -> None:
        self.invoice(days=4, state=Invoice.State.OVERDUE)
        for level, days in (("gentle", 3), ("gentle", 3), ("firm", 4), ("last", 30)):
            self.run_job(money.dun, level, days)
        self.assertEqual(len(mail.outbox), 2)

    def test_a_rate_is_that_of_the_day_of_the_fire_time_on_the_wall_of_its_zone(self) -> None:
        self.run_job(money.fetch_rate, "USD", zone="America/New_York", times=2)
        self.run_job(money.fetch_rate, "GBP", zone="Pacific/Kiritimati")
        days = {rate.currency: f"{rate.day}" for rate in ExchangeRate.objects.all()}
        self.assertEqual(days, {"USD": "2026-03-08", "GBP": "2026-03-08"})
        self.run_job(money.fetch_rate, "CHF", zone="Pacific/Honolulu")
        self.assertEqual(f"{ExchangeRate.objects.get(currency='CHF').day}", "2026-03-07")

    def test_reconciliations_find_each_difference_once(self) -> None:
        paid = self.invoice(
            days=1, state=Invoice.State.PAID, subscription=self.subscription(period=1)
        )
        GatewayCharge.objects.create(idempotency_key="stray", invoice_number=paid.pk, amount=900)
        self.invoice(period=1)
        for job in (money.match_charges, money.match_payments, money.match_periods):
            self.assertEqual(self.run_job(job, times=2), 1, job.name)
        self.assertEqual(Finding.objects.count(), 3)

    def test_a_figure_taken_twice_is_one(self) -> None:
        self.subscription()
        for name in figures.FIGURES:
            self.run_job(figures.take_figure, name, times=2)
        self.assertEqual(Figure.objects.filter(period="2026-03-08").count(), len(figures.FIGURES))
        self.assertEqual(Figure.objects.get(name="customers").value, 1)

    def test_books_are_closed_for_the_period_of_the_fire_time(self) -> None:
        self.invoice(state=Invoice.State.PAID)
        for period in ("month", "quarter", "year"):
            self.assertEqual(self.run_job(figures.close_books, period), 900)
        self.assertEqual(
            set(Figure.objects.values_list("period", flat=True)), {"2026-03", "2026-Q1", "2026"}
        )

    def test_usage_is_reported_for_the_month_before_and_built_once(self) -> None:
        self.assertEqual(self.run_job(figures.report_usage_of, "Team", times=2), "2026-02")
        report = Task.objects.get(name="billing.tasks.build_usage_report")
        self.assertEqual(report.args, [Plan.objects.get(name="Team").pk, "2026-02"])

    def test_a_meter_is_read_and_a_missing_figure_is_found(self) -> None:
        self.assertGreater(self.run_job(figures.read_feed_in, "Berlin, sunset"), 0)
        self.assertEqual(self.run_job(figures.look_for_gaps, "customers", times=2), 1)
        self.assertEqual(Finding.objects.get().subject, "customers 2026-03-07")

    def test_letters_are_written_only_where_there_is_something_to_say(self) -> None:
        for job, args in (
            (letters.send_findings, ()),
            (letters.send_open_dead_letters, ()),
            (letters.send_events, (7,)),
        ):
            self.run_job(job, *args)
        self.assertEqual(mail.outbox, [])
        Finding.objects.create(check_name="a check", subject="a subject")
        host = self.subscription(renews_at=timezone.now() + timedelta(days=7, hours=1)).customer
        Event.objects.create(
            title="Launch",
            host=host,
            starts_at=timezone.now() + timedelta(days=1),
            remind_before=timedelta(hours=1),
        )
        self.run_job(letters.send_findings)
        self.run_job(letters.send_events, 7)
        self.run_job(letters.announce_renewals, 7)
        self.run_job(letters.send_figures, "Berlin")
        subjects = [message.subject for message in mail.outbox]
        self.assertEqual(
            subjects,
            ["1 findings", "Events of 7 days", "Your renewal", "Berlin: figures of 2026-03-08"],
        )

    def test_what_is_old_is_thrown_away_and_what_was_left_lying_is_done(self) -> None:
        Post.objects.create(title="late", publish_at=timezone.now() - timedelta(days=1))
        Post.objects.create(
            title="old", publish_at=FIRE, published_at=timezone.now() - timedelta(days=9)
        )
        self.assertEqual(self.run_job(housekeeping.forget, "posts", 7, times=2), 0)
        self.assertEqual(self.run_job(housekeeping.publish_forgotten), 1)
        self.assertEqual(Post.objects.exclude(published_at=None).get().title, "late")
        ExchangeRate.objects.create(currency="USD", day=FIRE.date(), rate=1)
        for what in housekeeping.OLD:
            self.run_job(housekeeping.forget, what, 1)
        self.assertFalse(ExchangeRate.objects.exists())

    def test_the_house_is_kept(self) -> None:
        self.invoice(state=Invoice.State.PAID)
        self.assertEqual(self.run_job(housekeeping.verify_archive), 1)
        self.assertEqual(self.run_job(housekeeping.rehearse_restore)["Invoice"], 1)
        self.assertEqual(self.run_job(housekeeping.look_at_queue, -1), 0)
        self.assertEqual(Finding.objects.get().check_name, "too many tasks wait")
        self.run_job(housekeeping.forget_sessions)
        self.assertEqual(self.run_job(housekeeping.forget_mails, 30), 0)


class ReportTests(TestCase):
    """The report of the demo finds missing and duplicate fires."""

    def setUp(self) -> None:
        self.row = RecurringTask.objects.upsert(
            name="hourly", task=money.match_payments, interval=3600
        )
        RecurringTask.objects.unguarded().filter(pk=self.row.pk).update(
            start_time=FIRE, watermark_at=FIRE + timedelta(hours=4)
        )

    def write_entry(self, hours: int, *, last: int | None = None, **more: Any) -> None:
        """Write a ledger entry, as if the job had fired ``hours`` hours after its start."""
        OccurrenceRecord.objects.unguarded().create(
            recurring_task=self.row,
            tenant_id=1,
            fire_time=FIRE + timedelta(hours=hours),
            unique_fire_time=FIRE + timedelta(hours=hours) if last is None else None,
            last_fire_time=None if last is None else FIRE + timedelta(hours=last),
            **{"outcome": "SKIPPED_OVERLAP", "count": 1 + (last or hours) - hours} | more,
        )

    def read(self) -> fires.Fires:
        """Read the report of a demo without a leader during the second hour."""
        return fires.read((FIRE + timedelta(hours=1), FIRE + timedelta(hours=3)))

    def test_what_is_told_once_is_neither_missing_nor_doubled(self) -> None:
        self.write_entry(1)
        self.write_entry(2, last=4, outcome="MISSED")
        found = self.read()
        self.assertEqual(
            (found.jobs, found.expected, found.leaderless, found.fates.total()), (1, 4, 1, 4)
        )
        self.assertEqual((found.missing, found.doubled), ([], []))

    def test_a_fire_without_a_line_is_missing(self) -> None:
        self.write_entry(1)
        self.write_entry(3, last=4)
        self.assertEqual(self.read().missing, ["hourly at 09:00:00.000000 is not in the ledger"])

    def test_a_fire_that_never_ran_is_missing(self) -> None:
        task = money.match_payments.using(run_at=timezone.now() + timedelta(days=1)).schedule()
        self.write_entry(1, task_id=task.pk, outcome="DISPATCHED")
        self.write_entry(2, last=4)
        self.assertEqual(
            self.read().missing, ["hourly at 08:00:00.000000 was DISPATCHED and never ran"]
        )

    def test_a_fire_told_twice_and_one_that_was_none_are_doubled(self) -> None:
        self.write_entry(1, last=4)
        self.write_entry(2)
        self.write_entry(5)
        self.assertEqual(
            self.read().doubled,
            [
                "hourly at 09:00:00.000000 has 2 ledger entries",
                "hourly fired at 12:00:00.000000, which is no fire time",
            ],
        )

    def test_two_tasks_of_one_fire_are_doubled(self) -> None:
        self.write_entry(1, last=4)
        for _ in range(2):
            task = money.match_payments.using(run_at=timezone.now() + timedelta(days=1)).schedule()
            Task.objects.unguarded().filter(pk=task.pk).update(
                recurring_task=self.row, fire_time=FIRE + timedelta(hours=1)
            )
        self.assertEqual(self.read().doubled, ["hourly at 08:00:00.000000 has 2 tasks"])


class RealScheduleTests(TestCase):
    """Schedules of a real project, imported from a table."""

    def test_each_row_is_a_paused_schedule_and_what_cannot_be_read_is_named(self) -> None:
        with TemporaryDirectory() as folder:
            table = Path(folder, "jobs.csv")
            table.write_text(
                "name,cron,interval,minimum_interval\na,0 3 * * *,,\nb,,1h30m,\nc,,,2h\noff,0 0 31"
                " 2 *,,\nbad,,soon,\n"
            )
            stdout, stderr = StringIO(), StringIO()
            call_command("seed_real_schedules", str(table), stdout=stdout, stderr=stderr)
        rows = {row.name: row for row in RecurringTask.objects.all()}
        self.assertEqual(set(rows), {"real:a", "real:b", "real:c", "real:off"})
        self.assertEqual({row.status for row in rows.values()}, {"PAUSED"})
        self.assertEqual([rows[f"real:{name}"].interval_seconds for name in "bc"], [5_400, 7_200])
        self.assertIn("refused: bad: 'soon' is no duration", stderr.getvalue())
        self.assertIn("4 schedules declared, new ones paused; 1 refused", stdout.getvalue())
