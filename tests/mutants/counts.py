"""The guard of the counts for the metrics that can be removed."""

from __future__ import annotations

from typing import Any


class _AnyRevision:
    """Finds a position whatever its revision is."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def filter(self, **given: Any) -> Any:
        return self._rows.filter(pk=given["pk"])

    def bulk_create(self, *given: Any, **more: Any) -> Any:
        return self._rows.bulk_create(*given, **more)


def without_the_revision() -> None:
    """Write counts although another process has written since the position was read."""
    from django_durable_tasks.metrics import counts

    positions = counts.positions
    setattr(counts, "positions", lambda: _AnyRevision(positions()))  # noqa: B010 - mypy knows it as a function
