"""Performs writes and operations, in one transaction with the stored answer of an
``Idempotency-Key``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api import problems
from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.endpoint import WRITES, ApiEndpoint
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    Body,
    Flag,
    Id,
    Instant,
    Integer,
    JsonList,
    JsonObject,
    OneOf,
    Seconds,
    Text,
    rendered,
)
from django_durable_tasks.api.openapi import KEY_SENT_MAX
from django_durable_tasks.api.problems import Problem
from django_durable_tasks.api.tasks import without_secrets
from django_durable_tasks.audit import acting
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.exceptions import RequestConflict, RequestInProgress
from django_durable_tasks.operations.operation import (
    REASON_HELP,
    Argument,
    ArgumentType,
    Operation,
    OperationResult,
    Reason,
)
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import TimeLimits, bound_transaction
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.tenants.idempotent_requests import (
    RequestIdentity,
    StoredAnswer,
    once,
    rolled_back,
)

# Performs a write: in one transaction with the answer stored under its ``Idempotency-Key``, or as
# a dry run that is rolled back.


_KEY = re.compile(r"[\x20-\x7e]{1,200}")
_LONGEST_OPERATION = 200
LIMITS = TimeLimits(statement=15.0, lock=2.0, idle=15.0)
"""The time limits of the transaction of a write."""

Answer = StoredAnswer
"""The status, the body and the headers of an answer."""


class WritingEndpoint(ApiEndpoint):
    """An endpoint whose methods change data through ``write``."""

    def write(
        self,
        request: Request,
        act: Callable[[], Answer],
        before: Callable[[], Mapping[str, Any]] = dict,
        at_once: Callable[[RequestIdentity], Answer | None] | None = None,
    ) -> Response:
        """Call ``act`` in a transaction and return its answer.

        If ``act`` raises, nothing is written, not even the key of the request, so that a corrected
        request may use the same key. ``before`` returns the object that ``act`` changes, for the
        comparison of a dry run. ``at_once`` does the same as ``act`` for a request with an
        Idempotency-Key and stores the answer, in one statement outside of a transaction; if it
        returns None, ``act`` is called.
        """
        caller = self.caller
        with acting(
            AuditSource.API, caller.name, request.META.get("REMOTE_ADDR"), caller.tenant.pk
        ):
            key = idempotency_key(request)
            if self.dry_run:
                return self._previewed(act, before)
            if key is None:
                return _response(_in_transaction(act))
            return _response(self._once(self._identity(request, key), act, at_once))

    def _previewed(
        self, act: Callable[[], Answer], before: Callable[[], Mapping[str, Any]]
    ) -> Response:
        with rolled_back():
            bound_transaction(LIMITS)
            shown = before()
            return _response(Answer(200, _preview(shown, act())))

    def _identity(self, request: Request, key: str) -> RequestIdentity:
        return RequestIdentity(
            tenant_id=self.caller.tenant.pk,
            key=key,
            operation=operation_of(request),
            fingerprint=_fingerprint(request),
        )

    def _once(
        self,
        identity: RequestIdentity,
        act: Callable[[], Answer],
        at_once: Callable[[RequestIdentity], Answer | None] | None,
    ) -> Answer:
        def plain_act() -> Answer:
            answer = act()
            return Answer(answer.status_code, _plain(answer.body), answer.headers)

        @retry_on_deadlock
        def in_transaction() -> Answer:
            with tables.atomic():
                return once(identity, estimated_now(), LIMITS, plain_act)

        try:
            done = None if at_once is None else at_once(identity)
            return done or in_transaction()
        except RequestConflict as refused:
            raise problems.invalid_header(
                "Idempotency-Key", str(refused), problems.KEY_REUSED
            ) from None
        except RequestInProgress as running:
            raise Problem(
                problems.IN_PROGRESS, str(running), headers={"Retry-After": "1"}
            ) from running


@retry_on_deadlock
def _in_transaction(act: Callable[[], Answer]) -> Answer:
    with tables.atomic():
        bound_transaction(LIMITS)
        return act()


def idempotency_key(request: Request) -> str | None:
    """Return the key of a write, with or without the quotes of a structured field; None without
    the header. Raises Problem.

    A GET that writes an audit entry has no key, because its answer contains secrets, which must not
    be stored.
    """
    given = request.headers.get("Idempotency-Key")
    if given is None or request.method not in WRITES:
        return None
    text = given.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    if len(given) > KEY_SENT_MAX or not _KEY.fullmatch(text):
        raise problems.invalid_header(
            "Idempotency-Key", "give 1 to 200 printable ASCII characters."
        )
    return text


def _preview(before: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Return what a write would answer, and the fields that it would change."""
    body = _plain(answer.body) if isinstance(answer.body, bytes) else answer.body
    after = body if isinstance(body, Mapping) else {}
    changes = {
        name: {"before": before[name], "after": after[name]}
        for name in before
        if name in after and before[name] != after[name]
    }
    return {
        "dry_run": True,
        "would_answer": answer.status_code,
        "changes": changes,
        "would_return": body,
    }


def operation_of(request: Request) -> str:
    """Return method and path; the SHA-256 of them if they exceed the column."""
    text = f"{request.method} {request.path}"
    return text if len(text) <= _LONGEST_OPERATION else hashlib.sha256(text.encode()).hexdigest()


def _fingerprint(request: Request) -> str:
    """Return the digest of what a request asks for. An edit of another version is another one.

    Secrets are masked. Otherwise a key of the tenant that may not read them could guess one: only
    the right guess would be answered like the first request.
    """
    content: list[Any] = [without_secrets(request.data), sorted(request.query_params.lists())]
    if "If-Match" in request.headers:
        content.append(request.headers["If-Match"])
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(body: Any) -> Any:
    """Return the body as it is sent, so that a replayed answer is the same."""
    return json.loads(rendered(body) or b"null")


def _response(answer: Answer) -> Response:
    headers = dict(answer.headers)
    if answer.replayed:
        headers["Idempotent-Replayed"] = "true"
    if answer.status_code == 204:
        return Response(status=204, headers=headers)
    return Response(answer.body, status=answer.status_code, headers=headers)


_REASON_MAX = 500
_FIELDS: Mapping[ArgumentType, Any] = {
    ArgumentType.TEXT: lambda **options: Text(max_length=KEY_LENGTH, **options),
    ArgumentType.REQUEST_ID: lambda **options: Text(max_length=KEY_LENGTH, **options),
    ArgumentType.INSTANT: Instant,
    ArgumentType.INTEGER: Integer,
    ArgumentType.SECONDS: Seconds,
    ArgumentType.FLAG: Flag,
    ArgumentType.JSON_LIST: JsonList,
    ArgumentType.JSON_OBJECT: JsonObject,
    ArgumentType.TASK_ID: Id,
}


def body_of(
    name: str,
    *operations: Operation,
    without: Collection[str] = (),
    more: Mapping[str, Any] | None = None,
) -> type[Body]:
    """Return the serializer of a body with ``reason``, the fields of these operations except
    ``without``, and ``more`` fields.
    """
    required = all(one.reason == Reason.REQUIRED for one in operations)
    fields: dict[str, Any] = {
        "reason": Text(
            required=required,
            allow_blank=not required,
            max_length=_REASON_MAX,
            help_text=str(REASON_HELP),
        )
    }
    for operation in operations:
        if operation.modes:
            names = [str(mode.name) for mode in operation.modes]
            fields["mode"] = OneOf(choices=names, default=names[0])
        for argument in operation.fields:
            if argument.name not in without:
                fields[argument.name] = _field(argument)
    return type(name, (Body,), {**fields, **(more or {}), "__doc__": str(operations[0].help)})


def _field(argument: Argument) -> Any:
    options: dict[str, Any] = {
        "required": argument.required and argument.default is None,
        "help_text": str(argument.help or argument.label),
    }
    if argument.minimum is not None:
        options["min_value"] = argument.minimum
    if argument.choices:
        return OneOf(choices=[str(value) for value, _label in argument.choices], **options)
    return _FIELDS[argument.kind](**options)


def _default(argument: Argument) -> Any:
    return False if argument.kind == ArgumentType.FLAG else argument.default


def perform(
    operation: Operation, subject: Any, caller: Caller, given: Mapping[str, Any]
) -> OperationResult:
    """Perform the operation with the validated fields of a body; raises DurableTasksError, or
    Problem if a staff user lacks its permission.

    A field that the request leaves out gets the default of the registry.
    """
    caller.require_permission(operation.permission)
    fields = {
        argument.name: given.get(argument.name, _default(argument)) for argument in operation.fields
    }
    if operation.modes:
        fields["mode"] = given.get("mode", operation.modes[0].name)
    return operation.perform(subject, by=caller.name, reason=given.get("reason", ""), **fields)
