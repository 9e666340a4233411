"""``django_durable_tasks.end_of_workflow``: the last step of a sub-workflow. It runs when all other
tasks of the sub-workflow have ended, and tasks that depend on the sub-workflow depend on it.
"""

from __future__ import annotations

from typing import Any

from django_durable_tasks.decorators import durable_task
from django_durable_tasks.rules.workflows.step import END


@durable_task(name=END)
def end_of_workflow(**results: Any) -> dict[str, Any]:
    """Return the results of the last tasks of the sub-workflow, by step."""
    return results
