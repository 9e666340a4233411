"""``manage.py seed``: creates thousands of customers with subscriptions, and the recurring jobs, in
a second or two.
"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from billing import factories, schedules
from billing.models import Customer, Plan, Subscription


def seed(number: int) -> None:
    """Create ``number`` customers, each with a subscription, in one transaction of a few
    statements.
    """
    factories.begin()
    with transaction.atomic():
        Plan.objects.bulk_create(
            factories.PlanFactory.build_batch(len(factories.PLANS)), ignore_conflicts=True
        )
        Customer.objects.bulk_create(
            factories.CustomerFactory.build_batch(number), batch_size=1_000
        )
        plans, customers = (
            list(Plan.objects.order_by("pk")),
            Customer.objects.filter(subscriptions=None).order_by("pk"),
        )
        subscriptions = [
            factories.SubscriptionFactory.build(customer=customer, plan=plans[index % len(plans)])
            for index, customer in enumerate(customers)
        ]
        Subscription.objects.bulk_create(subscriptions, batch_size=1_000)


class Command(BaseCommand):
    """Create example data."""

    help = "Make customers with subscriptions that are due for renewal; the same ones in every run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--customers", type=int, default=3_000, help="how many (default: 3000)")

    def handle(self, *args: Any, **options: Any) -> None:
        seed(options["customers"])
        jobs = schedules.sync()
        customers, subscriptions = Customer.objects.count(), Subscription.objects.count()
        self.stdout.write(
            f"{customers} customers, {subscriptions} subscriptions, {len(jobs)} recurring jobs."
        )
