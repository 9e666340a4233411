"""Realistic customers that are the same in every run: factory-boy with a fixed seed."""

from datetime import UTC

import factory
import factory.random

from billing.models import Card, Customer, Plan, Subscription

SEED = 20_261_120
PLANS = {"Basic": 900, "Team": 4_900, "Business": 19_900}


class PlanFactory(factory.django.DjangoModelFactory):
    """Plans."""

    class Meta:
        model = Plan

    name = factory.Iterator(PLANS)
    price = factory.LazyAttribute(lambda plan: PLANS[plan.name])


class CustomerFactory(factory.django.DjangoModelFactory):
    """Customers; of a hundred cards three are declined, and the bank of one is unavailable."""

    class Meta:
        model = Customer

    name = factory.Faker("name")
    email = factory.Sequence(lambda n: f"customer{n}@example.com")
    card = factory.Sequence(
        lambda n: {17: Card.DECLINED, 42: Card.DECLINED, 77: Card.DECLINED, 13: Card.BANK_DOWN}.get(
            n % 100, Card.GOOD
        )
    )


class SubscriptionFactory(factory.django.DjangoModelFactory):
    """Subscriptions that became due within the last day."""

    class Meta:
        model = Subscription

    renews_at = factory.Faker("date_time_between", start_date="-1d", tzinfo=UTC)


def begin(seed: int = SEED) -> None:
    """Reset every factory to this seed."""
    factory.random.reseed_random(seed)
    CustomerFactory.reset_sequence(0)
    PlanFactory.name.reset()
