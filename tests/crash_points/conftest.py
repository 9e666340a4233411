"""The fixtures of this folder: the database is shared with the explorer program."""

from tests.processes.fixtures import db, shared_database

__all__ = ["db", "shared_database"]
