"""Mails. A mail server does not take part in a transaction, so each mail has a Message-ID by which
duplicates are detected.
"""

from uuid import NAMESPACE_DNS, uuid5

from django.core.mail import EmailMessage

from billing.models import Customer

OFFICE = "office@example.com"


def send(to: Customer, subject: str, body: str, *, key: str) -> None:
    """Send one mail; `key` is the same each time the same mail is sent."""
    _send(to.email, subject, body, key)


def send_to_office(subject: str, body: str, *, key: str) -> None:
    """Send one mail to the office, as ``send`` does."""
    _send(OFFICE, subject, body, key)


def _send(address: str, subject: str, body: str, key: str) -> None:
    name = uuid5(
        NAMESPACE_DNS, key
    )  # equally short for every key, so that the header is never folded
    EmailMessage(
        subject, body, to=[address], headers={"Message-ID": f"<{name}@billing.example.com>"}
    ).send()
