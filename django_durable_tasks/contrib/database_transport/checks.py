"""The system checks of the broker in the database."""

from __future__ import annotations
