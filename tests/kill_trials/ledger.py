"""The file with the figures of kill trials: one entry per trial, newest last, in the documentation."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import celery
import django
from django.db import connection

from tests.runs import ROOT

LEDGER = ROOT / "docs" / "explanation" / "kill_trials.json"


def entries(ledger: Path = LEDGER) -> list[dict[str, Any]]:
    """Return all entries."""
    found: list[dict[str, Any]] = json.loads(ledger.read_text()) if ledger.exists() else []
    return found


def enter(figures: dict[str, Any], database: str, broker: str, ledger: Path = LEDGER) -> None:
    """Append the figures of one trial, with time and place of the measurement."""
    entry = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "database": database,
        "broker": broker,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": (
            f"Python {platform.python_version()}, Django {django.__version__}, Celery"
            f" {celery.__version__}, {connection.display_name}"
            f" {'.'.join(map(str, connection.get_database_version()))}"
        ),
        **figures,
    }
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ledger.write_text(json.dumps([*entries(ledger), entry], indent=1) + "\n")
