"""Builds workflows from the bodies of requests.

``{"$result": "extract"}`` in the arguments of a step is the result of the earlier step ``extract``,
and ``{"$result": "extract", "path": ["rows", 0]}`` a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django_durable_tasks.api.authentication import Caller
from django_durable_tasks.api.fields import (
    KEY_LENGTH,
    AnyJson,
    Body,
    BoundedList,
    Instant,
    Integer,
    JsonObject,
    OneOf,
    Seconds,
    Text,
)
from django_durable_tasks.api.problems import invalid_field
from django_durable_tasks.api.tasks import call_of, check_queue, future, not_past, refuse_masks
from django_durable_tasks.choices import OnUpstreamFailure, TargetType
from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.engine.tenants.quotas import check_payload
from django_durable_tasks.exceptions import DependencyCycle, DurableTasksError
from django_durable_tasks.registry import Registered
from django_durable_tasks.rules.dependencies import needed_of
from django_durable_tasks.rules.references import MARK
from django_durable_tasks.rules.tasks.options import ATTEMPTS_MAX, CallOptions, call_options
from django_durable_tasks.rules.workflows import Step
from django_durable_tasks.workflows import Workflow

STEPS_MAX = 1_000
_OPTIONS = ("queue", "priority", "max_attempts", "timeout")


class StepBody(Body):
    """One task of a workflow."""

    step = Text(max_length=KEY_LENGTH, help_text="Unique within the workflow.")
    target_type = OneOf(
        choices=[kind.value for kind in TargetType], default=TargetType.CELERY_TASK.value
    )
    target_config = JsonObject(
        help_text=f'An argument {{"{MARK}": "step"}} is the result of an earlier step.'
    )
    after = AnyJson(
        required=False,
        help_text="Steps that must end before: a list of names, or an object of names and"
        " MUST_SUCCEED, MUST_FINISH or MUST_FAIL.",
    )
    join = AnyJson(required=False, help_text="ALL (default), ANY, or how many of them.")
    on_upstream_failure = OneOf(
        choices=[policy.value for policy in OnUpstreamFailure],
        default=OnUpstreamFailure.SKIP.value,
    )
    queue = Text(required=False, max_length=KEY_LENGTH)
    priority = Integer(required=False, min_value=0, max_value=9)
    max_attempts = Integer(required=False, min_value=1, max_value=ATTEMPTS_MAX)
    timeout = Seconds(required=False, min_value=0.001)


class NewWorkflowBody(Body):
    """A workflow to start."""

    name = Text(max_length=KEY_LENGTH, help_text="Of A-Z a-z 0-9 _ . : / < > -")
    key = Text(
        required=False,
        max_length=KEY_LENGTH,
        help_text="If an open workflow has this key, the answer is that one.",
    )
    run_at = Instant(required=False, validators=[not_past], help_text="The earliest start.")
    deadline = Instant(
        required=False,
        validators=[future],
        help_text="Tasks that have not ended then are cancelled.",
    )
    priority = Integer(required=False, min_value=0, max_value=9)
    steps = BoundedList(child=StepBody(), max_length=STEPS_MAX, allow_empty=False)


class _TaskWithOptions(NamedTuple):
    """A registered task with the options of a step, as ``task.using(...)`` returns."""

    registered: Registered
    options: CallOptions


def items_of(body: Mapping[str, Any]) -> int:
    """Return for how many items a body that was not validated counts: its steps, and its edges, of
    which 100 cost as much as a step.
    """
    steps = body.get("steps")
    known = steps if isinstance(steps, list) else []
    after = [one.get("after") for one in known if isinstance(one, dict)]
    return len(known) + sum(len(one) for one in after if isinstance(one, list | dict)) // 100


def workflow_of(given: Mapping[str, Any], caller: Caller) -> Workflow:
    """Return the workflow of a validated body; raises Problem or DurableTasksError."""
    flow = Workflow(given["name"], deadline=given.get("deadline"))
    steps = dict[str, Step]()
    for index, one in enumerate(given["steps"]):
        pointer = f"#/steps/{index}"
        if one["step"] in steps:
            raise invalid_field(f"{pointer}/step", "is the name of another step", "duplicate")
        try:
            steps[one["step"]] = _added(flow, one, steps, caller, pointer)
        except DurableTasksError as refused:
            raise invalid_field(pointer, str(refused)) from None
    for index, one in enumerate(given["steps"]):
        _connect(steps, one, f"#/steps/{index}/after")
    return flow


def _added(
    flow: Workflow,
    given: Mapping[str, Any],
    steps: Mapping[str, Step],
    caller: Caller,
    pointer: str,
) -> Step:
    place = f"{pointer}/target_config"
    check_payload(caller.tenant, given["target_config"])
    config = _resolved(given["target_config"], steps, place)
    refuse_masks(config, place)
    target = call_of(given["target_type"], config, caller.tenant, pointer)
    check_queue(given, caller.tenant, pointer)
    options = {name: given[name] for name in _OPTIONS if name in given}
    return flow.add_call(
        _TaskWithOptions(target.registered, call_options(CallOptions(), options)),
        target.args,
        target.kwargs,
        join=given.get("join", "ALL"),
        on_upstream_failure=given["on_upstream_failure"],
        step=given["step"],
    )


def _resolved(value: Any, steps: Mapping[str, Step], pointer: str) -> Any:
    """Return arguments in which references to steps are the results of these steps."""
    if isinstance(value, dict):
        if MARK in value:
            return _reference(value, steps, pointer)
        return {name: _resolved(item, steps, pointer) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, steps, pointer) for item in value]
    return value


def _reference(value: Mapping[str, Any], steps: Mapping[str, Step], pointer: str) -> Any:
    name, path = value[MARK], value.get("path", [])
    known = isinstance(name, str) and name in steps
    parts = isinstance(path, list) and all(type(part) in (str, int) for part in path)
    if not known or not parts or set(value) - {MARK, "path"}:
        raise invalid_field(
            pointer,
            f'contains a wrong reference: write {{"{MARK}": "step"}} with the name of an earlier'
            ' step, and "path" for a part of its result',
            "reference",
        )
    found = steps[name].result
    for part in path:
        found = found[part]
    return found


def _connect(steps: Mapping[str, Step], given: Mapping[str, Any], pointer: str) -> None:
    after = given.get("after", [])
    if not isinstance(after, list | dict) or not all(isinstance(name, str) for name in after):
        raise invalid_field(pointer, "is neither a list nor an object of names of steps", "type")
    for name in after:
        if name not in steps:
            hint = did_you_mean(name, list(steps))
            raise invalid_field(pointer, f"{name[:100]!r} is no step. {hint}".strip(), "unknown")
    try:
        needed_of(given.get("join", "ALL"), len(after))
    except DurableTasksError as refused:
        raise invalid_field(f"{pointer.removesuffix('after')}join", str(refused)) from None
    kinds = after if isinstance(after, dict) else dict.fromkeys(after, "MUST_SUCCEED")
    try:
        steps[given["step"]].after({steps[name]: kind for name, kind in kinds.items()})
    except DependencyCycle as refused:
        raise invalid_field(pointer, str(refused), "cycle") from None
    except DurableTasksError as refused:
        raise invalid_field(pointer, str(refused)) from None
