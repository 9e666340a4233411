"""The failpoints of the chaos suite as a Django application: each process checks for orders before
it publishes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.apps import AppConfig

VARIABLE = "CHAOS_ORDERS"


class ChaosConfig(AppConfig):
    """Replaces the publisher's send function if the environment names a file with orders."""

    name = "tests.chaos"
    label = "chaos"

    def ready(self) -> None:
        from django_durable_tasks.celery import publisher
        from django_durable_tasks.contrib.callbacks import endpoints

        # Seconds. A breaker that opens for the pause of production would end after the run.
        endpoints.PAUSE = 1.0
        if os.environ.get("CHAOS_CLOCK"):
            sys.stderr.write(f"chaos clock {datetime.now(UTC).isoformat()}\n")
        if os.environ.get(VARIABLE):
            sender = FaultySender(Path(os.environ[VARIABLE]), publisher._publish_once)
            setattr(publisher, "_publish_once", sender.publish)  # noqa: B010 - mypy knows it as a function


class FaultySender:
    """Sends every message `copies` times, each late by up to `delay` seconds, as long as the file
    says so.
    """

    def __init__(self, orders: Path, send: Any) -> None:
        self._orders, self._send = orders, send

    def publish(self, messages: Sequence[Any]) -> list[Any]:
        """Do as ``publisher._publish_once``, or follow the orders instead. Returns the result of
        the last copy.
        """
        orders, rejections = self._asked(), list[Any]()
        for _ in range(1 if orders is None else int(orders["copies"])):
            if orders is not None and orders["delay"]:
                self._later(messages, float(orders["delay"]))
            else:
                rejections = self._send(messages)
        return rejections

    def _asked(self) -> dict[str, float] | None:
        try:
            asked: dict[str, float] = json.loads(self._orders.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return asked

    def _later(self, messages: Sequence[Any], delay: float) -> None:
        for message in messages:
            timer = threading.Timer(random.uniform(0, delay), self._one, [message])
            timer.daemon = True
            timer.start()

    def _one(self, message: Any) -> None:
        try:
            self._send([message])
        except OSError:
            return  # lost on the network: the task is republished
