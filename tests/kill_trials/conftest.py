"""The fixtures of this folder."""

from tests.processes.fixtures import db, fleet, rows, shared_database

__all__ = ["db", "fleet", "rows", "shared_database"]
