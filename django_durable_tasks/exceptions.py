"""Every error of ours. An error raised without a message says its own docstring."""

from __future__ import annotations


class DurableTasksError(Exception):
    """Something in django_durable_tasks was refused or went wrong."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InvalidOption(DurableTasksError, ValueError):
    """An option of a durable task or of a call cannot be used."""


class InvalidCalendar(DurableTasksError, ValueError):
    """A calendar cannot be used: a bad date, a bad file, or no working day."""


class InvalidArguments(DurableTasksError, TypeError):
    """The arguments do not fit the signature of the durable task."""


class UnserializableArguments(InvalidArguments):
    """An argument would not come back from JSON as it went in."""


class PayloadTooLarge(InvalidArguments):
    """The arguments are larger than PAYLOAD_MAX_BYTES."""


class UnserializableResult(DurableTasksError, TypeError):
    """A body returned something that is not JSON."""


class ResultTooLarge(DurableTasksError, ValueError):
    """A body returned more than RESULT_MAX_BYTES."""


class UnknownTask(DurableTasksError, LookupError):
    """No durable task of this name is registered in this process."""


class PlainMessageRefused(DurableTasksError):
    """A worker got a message for a durable task that no row was created for; see
    ACCEPT_PLAIN_MESSAGES.
    """


class UnknownQueue(DurableTasksError, LookupError):
    """No queue of this name is known: it is neither declared to Celery nor in use."""


class IdempotencyConflict(DurableTasksError):
    """The idempotency key is taken by a call with another payload."""


class UniqueConflict(DurableTasksError):
    """A task of the same unique key is still open."""


class TransitionRefused(DurableTasksError):
    """The row does not stand where this transition starts."""


class GuardedModelError(DurableTasksError, TypeError):
    """Only the engine writes this table: save(), create(), update() and the like are refused, and
    the methods named.
    """


class EndingNotRecorded(DurableTasksError):
    """The ending of a run could not be written in time; its lease will end it."""


class BrokerUnavailable(DurableTasksError):
    """The broker did not take the messages within the time limit; the rows stay and are
    republished.
    """


class RunCancelled(DurableTasksError):
    """A cancellation of this run was requested."""


class RunLost(DurableTasksError):
    """This run no longer owns its row: its lease ended or another run took over."""


class RunOutOfTime(DurableTasksError):
    """This run is over its time limit."""


class BodyFailed(DurableTasksError):
    """A body raised something that cannot leave the process as it is; the text keeps its type and
    message.
    """


class WouldWaitForever(DurableTasksError, RuntimeError):
    """The result cannot come while the caller waits for it."""


class InvalidSchedule(DurableTasksError, ValueError):
    """A schedule cannot be used: its text, its numbers, its zone, or because it would
    never fire.
    """


class DependencyCycle(DurableTasksError, ValueError):
    """The dependencies would form a cycle."""


class InvalidDependency(DurableTasksError, ValueError):
    """A task cannot wait for this upstream: it is missing, it is another tenant's, or the task has
    started.
    """


class IsolationTooStrict(DurableTasksError, RuntimeError):
    """The transaction of an atomic task could not contain its success: its isolation level is not
    READ COMMITTED.
    """


class InvalidReference(DurableTasksError, ValueError):
    """A result cannot be referred to: its task is not upstream, or the result has no such part."""


class WorkflowTooLarge(DurableTasksError, ValueError):
    """A workflow has more tasks or edges than WORKFLOW_MAX_TASKS or WORKFLOW_MAX_EDGES allow."""


class UntranslatableCanvas(DurableTasksError, ValueError):
    """A part of a Celery canvas has no counterpart in a workflow."""
