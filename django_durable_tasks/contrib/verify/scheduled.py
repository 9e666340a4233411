"""The task ``django_durable_tasks.verify``: runs the checks of ``durable verify`` for a
schedule of the project. It repairs nothing.
"""

from __future__ import annotations

import logging
from typing import Any

from django_durable_tasks.contrib.verify import runner
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import DurableTasksError

VERIFY_TASK = "django_durable_tasks.verify"
"""The name of the task, which a schedule of the project gives."""
logger = logging.getLogger("django_durable_tasks.verify")
_LOGGED = 20


class VerificationIncomplete(DurableTasksError):
    """Some of the tables could not be read, so their state is unknown."""


@durable_task(name=VERIFY_TASK, bind=True, max_attempts=3)
def audit(self: Any) -> dict[str, Any]:
    """Run all checks. Log the findings as errors and return their numbers. Raises
    VerificationIncomplete.
    """
    answers = runner.verify(
        progress=lambda table, part: self.durable.progress(round(100 * part), 100, table)
    )
    wrong = {one.check.name: len(one.findings) for one in answers if one.findings}
    for finding in [finding for one in answers for finding in one.findings][:_LOGGED]:
        logger.error("%s (%s): %s", finding.check, finding.severity, finding.text)
    if wrong:
        logger.error(
            "%d findings in total. Run `manage.py durable verify` to list them.",
            sum(wrong.values()),
        )
    unread = {one.check.name: one.error for one in answers if one.error}
    if unread:
        raise VerificationIncomplete(
            "; ".join(f"{name}: {error}" for name, error in unread.items())
        )
    return {"checks": len(answers), "findings": sum(wrong.values()), "by_check": wrong}
