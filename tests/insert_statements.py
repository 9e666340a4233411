"""How many INSERT statements the ORM needs for rows of a model on the database of the run."""

from __future__ import annotations

from math import ceil

from django.db import connection
from django.db.models import Model


def insert_statements(model: type[Model], rows: int) -> int:
    """Return how many statements insert this many rows: SQLite takes 999 values in a statement,
    so there the rows of a model with many columns are split.
    """
    most = connection.features.max_query_params
    return ceil(rows / (most // len(model._meta.concrete_fields))) if most else 1
