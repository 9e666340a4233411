"""``/queues``: the queues of the installation, which all tenants share."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.api.fields import Body, Instant, Integer, Text
from django_durable_tasks.api.objects import shown_by
from django_durable_tasks.api.openapi import list_of
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.api.views.object_operations import ObjectAction, Resource
from django_durable_tasks.engine.cluster.queues import Depth, depths
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.operations import queues
from django_durable_tasks.rules.tasks.options import checked_name
from django_durable_tasks.rules.tenants.api_keys import ApiScope


class QueueAnswer(Body):
    """A queue. ``pending`` and ``due`` are counted up to 10,000."""

    queue = Text()
    pending = Integer()
    due = Integer()
    queued = Integer()
    running = Integer()
    late = Integer()
    oldest_due_at = Instant(allow_null=True)
    paused_at = Instant(allow_null=True)
    paused_by = Text(allow_blank=True)
    reason = Text(allow_blank=True)
    workers = Integer()
    concurrency = Integer()


def queue_json(depth: Depth, _caller: Caller) -> dict[str, Any]:
    """Return a queue as JSON values."""
    return shown_by(QueueAnswer, depth)


def _find(_caller: Caller, name: str) -> Depth:
    """Return a queue that exists, or one without tasks and workers."""
    try:
        checked_name("queue", name)
    except InvalidOption:
        raise Problem(problems.NOT_FOUND, "There is no queue with this name.") from None
    return next(depth for depth in depths(database_now(), [name]) if depth.queue == name)


class QueuesEndpoint(ApiEndpoint):
    """All queues."""

    reads = ("queuecontrol",)
    is_shared = True
    scopes: ClassVar = {"GET": ApiScope.QUEUES}
    answers: ClassVar = {"GET": list_of(QueueAnswer)}

    def get(self, request: Request) -> Response:
        """Return the queues that have open tasks, a worker or a pause, by name."""
        rows = [queue_json(depth, self.caller) for depth in depths(database_now())]
        return Response({"data": rows, "next_cursor": None, "prev_cursor": None, "has_more": False})


RESOURCE = Resource(
    name="queue",
    reads="queuecontrol",
    is_shared=True,
    find=_find,
    show=queue_json,
    answer=QueueAnswer,
    version=lambda _depth: 0,
    subject=lambda depth: depth.queue,
)
ACTIONS = (
    ObjectAction(path="pause", scope=ApiScope.QUEUES, operations=(queues.PAUSE,)),
    ObjectAction(
        path="resume",
        scope=ApiScope.QUEUES,
        operations=(queues.RESUME,),
        may_change_nothing=True,
    ),
)
