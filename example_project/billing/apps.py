"""The app."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Billing."""

    name = "billing"
