"""External systems: a payment gateway, a metering service, a bank; slow and unreliable, but the
same in every run.

Which calls fail is determined by a checksum of the arguments, so that tests can predict it.
"""

import time
import zlib
from datetime import date
from decimal import Decimal

from billing.models import Card, GatewayCharge

GATEWAY_SECONDS = METER_SECONDS = 0.1
FAILS_BEFORE, FAILS_AFTER = 10, 5  # of a hundred calls, before and after the charge
PAGES = 30


class GatewayUnavailable(Exception):
    """The gateway did not respond; whether the money moved is unknown."""


class CardDeclined(Exception):
    """The bank refuses this card; a retry is useless."""


def charge(
    *, card: str, invoice_number: int, amount: int, idempotency_key: str, attempt: int
) -> str:
    """Charge a card and return the reference; a key that was charged before returns the first
    charge.

    Raises CardDeclined, and GatewayUnavailable, after which it is unknown whether the money moved.
    """
    time.sleep(GATEWAY_SECONDS)
    if card == Card.DECLINED:
        raise CardDeclined("insufficient funds")
    luck = zlib.crc32(f"{idempotency_key}/{attempt}".encode()) % 100
    if card == Card.BANK_DOWN or luck < FAILS_BEFORE:
        raise GatewayUnavailable("503 from the bank")
    charge, _ = GatewayCharge.objects.get_or_create(
        idempotency_key=idempotency_key,
        defaults={"invoice_number": invoice_number, "amount": amount},
    )
    if luck < FAILS_BEFORE + FAILS_AFTER:
        raise GatewayUnavailable("the answer timed out")
    return str(charge)


def metered(plan_id: int, month: str, page: int) -> int:
    """Return the usage of one page of customers."""
    time.sleep(METER_SECONDS)
    return zlib.crc32(f"{plan_id}/{month}/{page}".encode()) % 1000


def exchange_rate(currency: str, day: date) -> Decimal:
    """Return the rate of a currency on a day, in euros."""
    return Decimal(800_000 + zlib.crc32(f"{currency}/{day}".encode()) % 200_000) / 1_000_000


def feed_in(site: str, day: date) -> int:
    """Return the watt-hours that the panels on a roof have produced so far on a day."""
    return zlib.crc32(f"{site}/{day}".encode()) % 50_000
