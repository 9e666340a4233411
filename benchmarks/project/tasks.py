"""Tasks that do next to nothing: what is left is what we cost."""

import os

from benchmarks.peers import stamps
from django_durable_tasks import durable_task


@durable_task
def noop(n: int) -> None:
    """Do nothing."""


@durable_task
def stamp(due: float) -> None:
    """Tell how late it starts."""
    stamps.stamp(os.environ["BENCHMARK_STAMPS"], due)
