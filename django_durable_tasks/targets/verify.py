"""``django_durable_tasks.verify``: run the checks of ``durable verify`` as VERIFY_CRON says,
without repairs.
"""

from __future__ import annotations

import logging
from typing import Any

from django_durable_tasks.decorators import durable_task
from django_durable_tasks.engine.verify import runner
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.rules.verify import VERIFY_TASK

logger = logging.getLogger("django_durable_tasks.verify")
_TOLD = 20


class CouldNotLook(DurableTasksError):
    """Some of the tables could not be read, so their state is unknown."""


@durable_task(name=VERIFY_TASK, bind=True, max_attempts=3)
def audit(self: Any) -> dict[str, Any]:
    """Verify all tables; what is wrong is logged as an error and counted in the result. Raises
    CouldNotLook.
    """
    answers = runner.verify(
        progress=lambda table, part: self.durable.progress(round(100 * part), 100, table)
    )
    wrong = {one.check.name: len(one.findings) for one in answers if one.findings}
    for finding in [finding for one in answers for finding in one.findings][:_TOLD]:
        logger.error("%s (%s): %s", finding.check, finding.severity, finding.text)
    if wrong:
        logger.error(
            "%d findings in total. Run `manage.py durable verify` to list them.",
            sum(wrong.values()),
        )
    blind = {one.check.name: one.error for one in answers if one.error}
    if blind:
        raise CouldNotLook("; ".join(f"{name}: {error}" for name, error in blind.items()))
    return {"checks": len(answers), "findings": sum(wrong.values()), "by_check": wrong}
