"""DurableTask: a true Celery task whose calls become rows and whose messages pass the gate."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar, NoReturn

from celery import Task as CeleryTask
from celery.exceptions import Ignore, MaxRetriesExceededError
from celery.exceptions import Retry as CeleryRetry

from django_durable_tasks import conf
from django_durable_tasks.celery import calls, gate, runs
from django_durable_tasks.celery.calls import Using
from django_durable_tasks.celery.context import Durable
from django_durable_tasks.celery.envelope import of_request
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.rules.options import TaskOptions

logger = logging.getLogger("django_durable_tasks.runs")


class DurableTask(CeleryTask):
    """Celery's task class for ``@durable_task``.

    Its messages are acknowledged early and never redelivered by Celery: the row's lease and alarm do what late
    acknowledgements promise, without their doubles.
    """

    abstract = True
    acks_late: ClassVar[bool] = False
    reject_on_worker_lost: ClassVar[bool] = False
    retry_on_worker_lost: ClassVar[bool] = False
    max_retries: ClassVar[int | None] = None
    durable_options: TaskOptions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the row of the message in hand; a plain call, also from inside a body, runs the function."""
        request = self.request
        live = runs.current()
        if request.called_directly or (live is not None and live.run.celery_id == request.id):
            return super().__call__(*args, **kwargs)
        envelope = of_request(request)
        if envelope is None:
            if request.is_eager or conf.settings().PLAIN_MESSAGES:
                return super().__call__(*args, **kwargs)
            logger.error("Refused a message for %s that rings for no row (DURABLE_TASKS['PLAIN_MESSAGES']).", self.name)
            raise Ignore("A durable task takes its arguments from its row, never from a message.")
        return gate.pass_through(self, envelope)

    @property
    def durable(self) -> Durable:
        """What the body may know of its run; raises InvalidOption outside a durable run."""
        live = runs.current()
        if live is None:
            raise InvalidOption("self.durable exists only while a worker runs the body; a plain call has no row.")
        return Durable(live)

    def using(self, **options: Any) -> Using:
        """Return this task with options for the calls made through the returned object."""
        return calls.of(self.name).using(**options)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Create the row in the caller's transaction and return it; ``run_at=`` names the earliest start."""
        return calls.of(self.name).schedule(*args, **kwargs)

    def schedule_many(self, arguments: Iterable[Iterable[Any]], *, run_at: datetime | None = None) -> Any:
        """Create one row for each tuple of arguments, by one statement a batch; return their ids."""
        return calls.of(self.name).schedule_many(arguments, run_at=run_at)

    def aschedule(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: the asynchronous form comes with a later release."""
        raise InvalidOption("aschedule() is not available: use sync_to_async(task.schedule)(...) until it is.")

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Create the row in the caller's transaction and return a DurableResult."""
        return calls.of(self.name).delay(*args, **kwargs)

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> Any:
        """Do as ``delay``: a row is born with the caller's transaction anyway."""
        return self.delay(*args, **kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any) -> Any:
        """Create the row as Celery's ``apply_async`` would send the message; return a DurableResult."""
        return calls.of(self.name).apply_async(args, kwargs, task_id=task_id, **options)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Ask for another try without publishing: the wait is spent in the row."""
        live = runs.current()
        if live is None:
            return super().retry(args, kwargs, exc, throw, eta, countdown, max_retries, **options)
        if args is not None or kwargs is not None:
            raise InvalidOption("self.retry(args=..., kwargs=...): the row keeps its arguments; schedule another task.")
        if max_retries is not None and live.run.failures >= max_retries:
            raise exc or MaxRetriesExceededError(f"{self.name} was tried {live.run.failures + 1} times.")
        when: Any = eta if eta is not None else countdown
        if eta is not None and eta.tzinfo is None:
            when = eta.replace(tzinfo=UTC)
        wish = CeleryRetry("the body asked for another try", exc=exc, when=when)
        if throw:
            raise wish from exc
        return wish


def signature_of(function: Any, *, bound: bool) -> inspect.Signature:
    """Return the signature that a call must fit: without ``self`` for a bound body."""
    signature = inspect.signature(function)
    if not bound:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])
