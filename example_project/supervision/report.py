"""The figures of the demo, read from the database after its end."""

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from billing.models import GatewayCharge, Payment, Subscription
from billing.tasks import renew_subscription
from django.conf import settings
from django.db.models import Count, F, Min, Sum

from django_durable_tasks.models import DeadLetter, Task, TaskExecutionLog

ACCEPTED = ("SUCCESS", "FAILED", "RETRY", "LOST", "CANCELLED")
STARTED = (*ACCEPTED, "FENCED")
ENDED = ("SUCCESS", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED")


@dataclass(frozen=True)
class Report:
    """The figures; times in seconds."""

    statuses: Counter[str]
    started: int
    retried: int
    dead_letters: int
    replayed: int
    fenced: int
    lost: list[str]
    doubled: list[str]
    rolled_back: int
    runs_lost: int
    rerun: int
    lags: list[float]
    mails: Counter[str] = field(default_factory=Counter)
    charges: int = 0

    @property
    def created(self) -> int:
        """How many tasks there are."""
        return sum(self.statuses.values())

    def lag(self, share: float) -> float:
        """Return the start lag that this share of the tasks did not exceed."""
        return self.lags[min(len(self.lags) - 1, int(share * len(self.lags)))] if self.lags else 0.0


def read(
    committed: set[uuid.UUID], rolled_back: set[uuid.UUID], killed: Sequence[uuid.UUID]
) -> Report:
    """Read everything from the database; the caller provides the committed tasks, the rolled back
    ones, and the killed nodes.
    """
    logs = TaskExecutionLog.objects.order_by()
    lost_runs = logs.filter(status="LOST", node__in=killed)
    return Report(
        statuses=Counter(dict(Task.objects.order_by().values_list("status").annotate(Count("pk")))),
        started=Task.objects.aggregate(number=Sum("attempts"))["number"] or 0,
        retried=logs.filter(status="RETRY").count(),
        dead_letters=DeadLetter.objects.count(),
        replayed=DeadLetter.objects.filter(resolution="REPLAYED").count(),
        fenced=logs.filter(status="FENCED").count(),
        lost=sorted(_lost(committed)),
        doubled=sorted(_doubled()),
        rolled_back=Task.objects.filter(pk__in=rolled_back).count(),
        runs_lost=lost_runs.count(),
        rerun=lost_runs.filter(task__attempts__gt=F("attempt_number")).count(),
        lags=sorted(_lags()),
        mails=_mails(),
        charges=GatewayCharge.objects.count(),
    )


def _lost(committed: set[uuid.UUID]) -> Iterator[str]:
    """Tasks that disappeared after their commit, and tasks that have not ended."""
    known = set(Task.objects.values_list("pk", flat=True))
    for task_id in committed - known:
        yield f"{task_id} vanished"
    for task in Task.objects.exclude(status__in=ENDED):
        yield f"{task} is still {task.status}"
    for task in Task.objects.filter(status="FAILED").exclude(
        pk__in=DeadLetter.objects.open().values("task")
    ):
        yield f"{task} failed without a dead letter"
    started = Task.objects.aggregate(number=Sum("attempts"))["number"] or 0
    ended = TaskExecutionLog.objects.filter(status__in=ACCEPTED).count()
    if started > ended:
        yield f"{started - ended} attempts have no ending"


def _doubled() -> Iterator[str]:
    """Tasks that succeeded twice, attempts that were started twice, and duplicate effects."""
    logs = TaskExecutionLog.objects.order_by()
    for row in (
        logs.filter(status="SUCCESS")
        .values("task")
        .annotate(number=Count("pk"))
        .filter(number__gt=1)
    ):
        yield f"{row['task']} succeeded {row['number']} times"
    starts = logs.filter(status__in=STARTED).values("task", "attempt_number")
    for row in starts.annotate(runs=Count("run_id", distinct=True)).filter(runs__gt=1):
        yield f"{row['task']} attempt {row['attempt_number']} was started {row['runs']} times"
    endings = logs.filter(status__in=ACCEPTED).values("task", "run_id").annotate(number=Count("pk"))
    for row in endings.filter(number__gt=1):
        yield f"{row['task']} has a run with {row['number']} accepted endings"
    for row in (
        GatewayCharge.objects.values("invoice_number")
        .annotate(number=Count("pk"))
        .filter(number__gt=1)
    ):
        yield f"invoice {row['invoice_number']} was charged {row['number']} times"
    for row in Payment.objects.values("invoice").annotate(number=Count("pk")).filter(number__gt=1):
        yield f"invoice {row['invoice']} was paid {row['number']} times"
    periods = Subscription.objects.aggregate(number=Sum("period"))["number"] or 0
    renewals = Task.objects.filter(name=renew_subscription.name, status="SUCCESS").count()
    if periods != renewals:
        yield f"{renewals} renewals succeeded, and the subscriptions moved {periods} periods"


def _lags() -> Iterator[float]:
    """Return the times between the due time of a task and its first attempt; a task that waits for
    other tasks has no due time.
    """
    first: dict[uuid.UUID, datetime] = dict(
        TaskExecutionLog.objects.order_by()
        .filter(status__in=STARTED, started_at__isnull=False)
        .values_list("task")
        .annotate(Min("started_at"))
    )
    for task_id, run_at in Task.objects.filter(workflow=None).values_list("pk", "run_at"):
        if task_id in first:
            yield (first[task_id] - run_at).total_seconds()


def _mails() -> Counter[str]:
    found: Counter[str] = Counter()
    folder = Path(settings.MAIL_FOLDER)
    for file in folder.glob("*.log") if folder.is_dir() else ():
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        found.update(line for line in lines if line.startswith("Message-ID:"))
    return found
