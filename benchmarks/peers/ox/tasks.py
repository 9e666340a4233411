"""A task that does nothing."""

from django.tasks import task


@task
def noop(n: int) -> None:
    """Do nothing."""
