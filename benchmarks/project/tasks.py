"""A task that does nothing: what is left is what we cost."""

from django_durable_tasks import durable_task


@durable_task
def noop(n: int) -> None:
    """Do nothing."""
