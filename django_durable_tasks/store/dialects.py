"""Chooses between the forms of a function on the tables: one for all databases, others for one.

The ORM form is the specification. Another one exists where the ORM form is wrong on a database, or
where a measurement justifies one SQL statement. Both pass the same tests.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from importlib import resources
from typing import Any, Generic, ParamSpec, TypeVar

from django.db import connections

from django_durable_tasks import conf

P = ParamSpec("P")
R = TypeVar("R")
POSTGRESQL, MYSQL, SQLITE = "postgresql", "mysql", "sqlite"
"""The vendors, as Django names them. MySQL is MariaDB too."""


def vendor() -> str:
    """Return the vendor of the database of DURABLE_TASKS['DATABASE']."""
    return connections[conf.settings().DATABASE].vendor


class Verb(Generic[P, R]):
    """A function with one form for each database that needs one of its own."""

    def __init__(self, form: Callable[P, R]) -> None:
        functools.update_wrapper(self, form)
        self.name = f"{form.__module__}.{form.__qualname__}".removeprefix("django_durable_tasks.")
        self.orm = form
        self.forms: dict[str, Callable[P, R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the form of the database."""
        return self.forms.get(vendor(), self.orm)(*args, **kwargs)

    def on(self, *vendors: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: make a function the form for these databases."""

        def decorate(form: Callable[P, R]) -> Callable[P, R]:
            self.forms |= dict.fromkeys(vendors, form)
            return form

        return decorate


VERBS: list[Verb[..., Any]] = []
"""All functions with several forms. A further database begins with the forms of the ORM."""


def verb(form: Callable[P, R]) -> Verb[P, R]:
    """Decorator: make the ORM form of a function one with several forms."""
    made = Verb(form)
    VERBS.append(made)
    return made


# The SQL statements of these forms, in ``sql/<name>.<vendor>.sql``.


@functools.cache
def text(name: str, of: str) -> str | None:
    """Return the statement of this name without comments; None if the vendor has none."""
    file = resources.files(__package__).joinpath("sql", f"{name}.{of}.sql")
    if not file.is_file():
        return None
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))


def sql(name: str, of: str | None = None) -> str:
    """Return the statement of this name for a vendor, by default that of the database of
    settings.DURABLE_TASKS. Raises LookupError if it has none.
    """
    of = of or vendor()
    statement = text(name, of)
    if statement is None:
        raise LookupError(f"There is no statement {name} for {of}.")
    return statement


def _text_of(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


_recordset = json.JSONEncoder(default=_text_of, check_circular=False, separators=(",", ":"))


def recordset(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as JSON for ``json_to_recordset``; missing keys are NULL.

    This takes half the time of one array per column, which the driver would serialize in Python.
    """
    return _recordset.encode(list(rows))
