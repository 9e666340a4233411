"""The fixtures of this folder."""

from tests.processes.fixtures import cluster, db, rows, shared_database

__all__ = ["cluster", "db", "rows", "shared_database"]
