"""``Step``: one task of a workflow under construction, and the names of the built-in tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from django_durable_tasks.rules.workflows.plan import (
    Reference,
    TaskId,
)

if TYPE_CHECKING:
    from django_durable_tasks.rules.workflows.builder import Builder

END = "django_durable_tasks.end_of_workflow"
"""The built-in task that ends a sub-workflow: it depends on all of its tasks and returns their
results by step.
"""


MAP = "django_durable_tasks.map"


STARMAP = "django_durable_tasks.starmap"
"""The built-in tasks that call another task for each item in sequence, and return the results as a
list.
"""


CALLBACKS = ("on_success", "on_failure", "on_complete")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One task of a workflow under construction, for ``after=``; its ``result`` can be an argument
    of another task.
    """

    place: int
    builder: Builder
    name: str

    @property
    def result(self) -> Reference:
        """The future result of the task; index it for a part of the result."""
        self.builder._wanted.add(self.place)
        return Reference(self.place, self.builder)

    @property
    def id(self) -> TaskId:
        """The id that the task will have, as a string."""
        return TaskId(self.place, self.builder)

    def after(self, *upstreams: Any) -> Self:
        """Add upstreams to this task; return it."""
        self.builder._wait(self.place, upstreams)
        return self
