"""The benchmarks of requests to a web process: the contenders of each, in their order."""

from __future__ import annotations

from functools import partial

from benchmarks.admin import OPENED, PAGES, Admin
from benchmarks.contest import OURS, Contender
from benchmarks.rest import BULK, PAGE, Rest
from benchmarks.stage import Stage, a_contender

REQUESTS, BULKS = 1_000, 10


def api(stage: Stage) -> list[Contender]:
    """Compare a request that creates a task with a plain create of Django REST framework; measure
    1,000 tasks in one request, and pages of a tenant with n tasks.
    """
    ours, pages = Rest(stage.servers, "redis"), Rest(stage.servers, "redis")
    found = []
    for of, peer in (("ours", OURS), ("bare", "django-rest-framework")):
        measure = partial(ours.measured, "requests", REQUESTS, of=of)
        found.append(a_contender(stage, "api", "create", peer, None, measure, n=REQUESTS))
    measure = partial(ours.measured, "bulk", BULKS)
    what = f"create {BULK:,} in a request"
    found.append(a_contender(stage, "api", what, OURS, None, measure, n=BULK * BULKS))
    what = f"a page of {PAGE} of {stage.n:,} tasks"
    measure = partial(pages.measured, "pages", stage.n)
    found.append(a_contender(stage, "api", what, OURS, None, measure, n=PAGE))
    return found


def admin(stage: Stage) -> list[Contender]:
    """Measure pages of the admin beside n ended tasks: the list, the list of failed tasks, and a
    task.
    """
    ours, found = Admin(stage.servers, "redis", stage.n), []
    for page in PAGES:
        what = f"{page}, {stage.n:,} tasks"
        measure = partial(ours.measured, page)
        found.append(a_contender(stage, "admin", what, OURS, None, measure, n=OPENED))
    return found
