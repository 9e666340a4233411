"""The exceptions of this package. An exception without a message uses its docstring as message.

``docs/reference/errors.md`` is generated from the docstrings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class DurableTasksError(Exception):
    """An operation of django_durable_tasks was refused or failed."""

    step = ""
    """The step whose task was refused, of a workflow that was not started."""

    def __init__(self, message: str = "", *, option: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        # The option, argument or field that was refused; "" if it is not a single one.
        self.option = option

    @classmethod
    def of(cls, option: str, value: object, remedy: str) -> Self:
        """Return the error of a value that an option cannot have."""
        error = cls(f"{option}={value!r}: {remedy}")
        error.option = option  # an error with data of its own has no such argument
        return error


@contextmanager
def about(option: str) -> Iterator[None]:
    """Give the errors of a block, or of a function that it decorates, the name of the option."""
    try:
        yield
    except DurableTasksError as refused:
        refused.option = refused.option or option
        raise


class InvalidOption(DurableTasksError, ValueError):
    """An option of a durable task or of a call cannot be used."""


class InvalidTarget(InvalidOption):
    """A request or message to another system cannot be sent: a bad URL, header, address or name."""


class DeliveryFailed(DurableTasksError):
    """An endpoint refused a request or message in a way that another attempt would not change."""


class DeliveryStopped(DeliveryFailed):
    """The receiver of a request wants no more requests: 410, or ``webhook-delivery: disable``."""


class MessageRejected(DurableTasksError):
    """The broker refused a message for another program, or no queue would receive it."""


class InvalidSignature(DurableTasksError):
    """A received webhook is not signed with a secret of this endpoint, or is too old."""


class InvalidCalendar(DurableTasksError, ValueError):
    """A calendar cannot be used: a bad date, a bad file, or no working day."""


class InvalidArguments(DurableTasksError, TypeError):
    """The arguments do not fit the signature of the durable task."""


class UnserializableArguments(InvalidArguments):
    """An argument would change when it is converted to JSON and back."""


class PayloadTooLarge(InvalidArguments):
    """The arguments are larger than PAYLOAD_MAX_BYTES or than a quota of the tenant."""

    def __init__(self, message: str = "", *, quota: str = "") -> None:
        super().__init__(message)
        self.quota = quota


class QuotaExceeded(DurableTasksError):
    """The operation would exceed a quota of its tenant."""

    def __init__(
        self, message: str = "", *, quota: str = "", limit: int = 0, used: int = 0
    ) -> None:
        super().__init__(message)
        self.quota, self.limit, self.used = quota, limit, used


class EncryptionError(DurableTasksError):
    """An encrypted value cannot be read in this process. Nothing is lost: the row keeps it."""


class EncryptionKeyMissing(EncryptionError):
    """A value is encrypted with a key that is not in ENCRYPTION_KEYS."""


class DecryptionFailed(EncryptionError):
    """A value was changed, or copied from another row or tenant."""


class UnserializableResult(DurableTasksError, TypeError):
    """A task function returned a value that cannot be converted to JSON."""


class ResultTooLarge(DurableTasksError, ValueError):
    """A result is larger than RESULT_MAX_BYTES, or references than 1 MiB."""


class UnknownTask(DurableTasksError, LookupError):
    """No durable task of this name is registered in this process."""


class PlainMessageRefused(DurableTasksError):
    """A message of a durable task has no row in the table; see ACCEPT_PLAIN_MESSAGES."""


class UnknownQueue(DurableTasksError, LookupError):
    """The queue is neither declared in the configuration of Celery nor in use."""


class IdempotencyConflict(DurableTasksError):
    """The idempotency key belongs to a call with other arguments."""


class RequestConflict(IdempotencyConflict):
    """The Idempotency-Key of a request belongs to a request with other contents."""


class RequestInProgress(DurableTasksError):
    """A request with the same Idempotency-Key has not ended yet."""


class UniqueConflict(DurableTasksError):
    """An open task has the same unique key."""


class TransitionRefused(DurableTasksError):
    """The current state of the task does not permit the operation."""


class GuardedModelError(DurableTasksError, TypeError):
    """Only the engine writes this table; use the methods that the message lists."""


class EndingNotRecorded(DurableTasksError):
    """The ending of a run was not recorded in time; the lease ends the run when it expires."""


class BrokerUnavailable(DurableTasksError):
    """The broker did not accept the messages in time; the tasks are republished."""


class RunCancelled(DurableTasksError):
    """The cancellation of this run was requested."""


class RunLost(DurableTasksError):
    """This run does not own its task anymore: its lease expired, or another run owns it."""


class RunOutOfTime(DurableTasksError):
    """This run has exceeded its time limit."""


class RunInterrupted(BaseException):
    """The worker is shutting down. The next attempt of the task continues where this one stopped.

    No Exception, so that task functions do not catch it.
    """


class BodyFailed(DurableTasksError):
    """A task function raised an exception that cannot be sent to another process unchanged."""


class WouldWaitForever(DurableTasksError, RuntimeError):
    """The result cannot become available while the caller waits for it."""


class InvalidSchedule(DurableTasksError, ValueError):
    """The expression, numbers or time zone of a schedule are invalid, or it never fires."""


class DependencyCycle(DurableTasksError, ValueError):
    """The dependencies would form a cycle."""


class InvalidDependency(DurableTasksError, ValueError):
    """The upstream does not exist for this tenant, the task has already started, or too many levels
    of tasks would have to be searched for a cycle.
    """


class IsolationTooStrict(DurableTasksError, RuntimeError):
    """The transaction of an atomic task does not use READ COMMITTED."""


class InvalidReference(DurableTasksError, ValueError):
    """A result cannot be referenced: its task is not upstream, or it has no such part."""


class WorkflowTooLarge(DurableTasksError, ValueError):
    """A workflow has more tasks or edges than WORKFLOW_MAX_TASKS allows."""


class UntranslatableCanvas(DurableTasksError, ValueError):
    """A part of a Celery canvas has no counterpart in a workflow."""
