"""Numbers of rows that are counted up to a bound, so that a count does not read a whole backlog."""

from __future__ import annotations

from typing import Any, Self

from django.db.models import QuerySet


class BoundedCount(int):
    """A number of rows, and whether it is exact. Otherwise there may be more rows, and its text has
    a plus sign. A sum is exact if all its numbers are.

    Write it with ``%s`` or in an f-string: ``%d`` has no plus sign.
    """

    is_exact: bool

    def __new__(cls, number: int, is_exact: bool = True) -> Self:
        """Create the number."""
        count = super().__new__(cls, number)
        count.is_exact = is_exact
        return count

    @classmethod
    def of(cls, queryset: QuerySet[Any], most: int) -> Self:
        """Count the rows of a queryset, at most ``most``."""
        number = queryset.order_by().values("pk")[: most + 1].count()
        return cls(min(number, most), number <= most)

    def __add__(self, other: int) -> BoundedCount:
        """Add a number."""
        return BoundedCount(int(self) + int(other), self.is_exact and is_exact(other))

    __radd__ = __add__

    def __str__(self) -> str:
        """Return the number with the plus sign."""
        return format(self)

    def __format__(self, layout: str) -> str:
        """Return the number in this layout with the plus sign."""
        return f"{int(self):{layout}}{'' if self.is_exact else '+'}"


def is_exact(number: int) -> bool:
    """Return whether there are no more rows than this number."""
    return not isinstance(number, BoundedCount) or number.is_exact
