"""Workflows in memory: the builder, the plan of a start with its checks, and the status of a
run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

from django_durable_tasks.choices import Gate, OnUpstreamFailure, WorkflowStatus
from django_durable_tasks.dependencies import rules
from django_durable_tasks.exceptions import (
    DependencyCycle,
    InvalidOption,
    InvalidReference,
    WorkflowTooLarge,
)
from django_durable_tasks.option_values import checked_key, checked_name, chosen, instant, seconds
from django_durable_tasks.tasks.options import CallOptions, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """One task of a plan; ``needed`` None: all of its edges; ``scope``: the position of its
    workflow in the plan.
    """

    step: str
    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: CallOptions = CallOptions()
    edges: tuple[rules.PlannedEdge, ...] = ()
    needed: int | None = None
    on_upstream_failure: str = OnUpstreamFailure.SKIP.value
    gates: tuple[tuple[str, str], ...] = ()
    scope: int = 0
    refers: bool = False
    hides_secrets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One workflow of a plan: the outer one, or a sub-workflow with the positions of its parent and
    its last task.
    """

    name: str
    parent: int | None = None
    end: int | None = None
    deadline: float | datetime | None = None
    callbacks: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The checked tasks and edges, ready to be written; scope 0 is the outer workflow."""

    tasks: tuple[PlannedTask, ...]
    scopes: tuple[Scope, ...]

    @property
    def edges(self) -> int:
        """How many edges it has."""
        return sum(len(task.edges) for task in self.tasks)


def verdict(
    counts: Mapping[str, int], total: int, *, cancelled: bool, overdue: bool
) -> WorkflowStatus:
    """Return the status of a run: FAILED if a task failed or expired, then CANCELLED if one was
    cancelled, otherwise SUCCESS.
    """
    if sum(counts.values()) < total:
        return WorkflowStatus.RUNNING
    if counts.get("failed") or counts.get("expired") or overdue:
        return WorkflowStatus.FAILED
    return (
        WorkflowStatus.CANCELLED if counts.get("cancelled") or cancelled else WorkflowStatus.SUCCESS
    )


# ``Step``: one task of a workflow under construction, and the names of the built-in tasks.


END = "django_durable_tasks.end_of_workflow"
"""The built-in task that ends a sub-workflow: it depends on all of its tasks and returns their
results by step.
"""


MAP = "django_durable_tasks.map"


STARMAP = "django_durable_tasks.starmap"
"""The built-in tasks that call another task for each item in sequence, and return the results as a
list.
"""


CALLBACKS = ("on_success", "on_failure", "on_complete")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One task of a workflow under construction, for ``after=``; its ``result`` can be an argument
    of another task.
    """

    place: int
    builder: Builder
    name: str

    @property
    def result(self) -> rules.Reference:
        """The future result of the task; index it for a part of the result."""
        self.builder._wanted.add(self.place)
        return rules.Reference(self.place, self.builder)

    @property
    def id(self) -> rules.TaskId:
        """The id that the task will have, as a string."""
        return rules.TaskId(self.place, self.builder)

    def after(self, *upstreams: Any) -> Self:
        """Add upstreams to this task; return it."""
        self.builder._wait(self.place, upstreams)
        return self


# Checks of a plan: references only to results of upstreams.


def refers(label: str, arguments: Any) -> bool:
    try:
        return bool(rules.references_in(arguments))
    except RecursionError:
        raise InvalidReference(
            f"The arguments of {label!r} are nested too deep, or contain themselves."
        ) from None


def above(tasks: Sequence[PlannedTask]) -> dict[int, list[int]]:
    """Return the upstreams of each task within the plan, by their positions."""
    return {
        place: [edge.upstream for edge in task.edges if isinstance(edge.upstream, int)]
        for place, task in enumerate(tasks)
    }


def check_references(tasks: Sequence[PlannedTask], above: Mapping[int, Sequence[int]]) -> None:
    ancestors: dict[int, int] | None = None  # the upstreams of each, as the bits of a number
    for place, task in enumerate(tasks):
        for reference in rules.references_in([task.args, dict(task.kwargs)]) if task.refers else ():
            if reference.place in above[place]:
                continue
            if ancestors is None:
                ancestors = {}
                for layer in rules.layers(above):
                    for lower in layer:
                        ancestors[lower] = 0
                        for upper in above[lower]:
                            ancestors[lower] |= ancestors[upper] | 1 << upper
            if not ancestors[place] >> reference.place & 1:
                raise InvalidReference(
                    f"{task.step!r} refers to the result of {tasks[reference.place].step!r}, which"
                    " is not upstream of it: add it to after=..."
                )


# Builds a workflow in memory: tasks, edges, sub-workflows. Errors are raised here, before anything
# is written.


class Builder:
    """A workflow under construction: ``add`` tasks, ``add_workflow`` sub-workflows, then
    ``plan``.
    """

    def __init__(
        self,
        name: str,
        *,
        deadline: float | timedelta | datetime | None = None,
        on_success: Any = None,
        on_failure: Any = None,
        on_complete: Any = None,
    ) -> None:
        self.name = checked_name("workflow", name)
        self.deadline: float | datetime | None = None
        if isinstance(deadline, datetime):
            self.deadline = instant("deadline", deadline)
        elif deadline is not None:
            self.deadline = seconds("deadline", deadline)
        self.callbacks: dict[str, str] = {}
        for kind, task in zip(CALLBACKS, (on_success, on_failure, on_complete), strict=True):
            if task is not None:
                self.callbacks[kind], options = _named(task)
                if options != CallOptions():
                    raise InvalidOption(
                        f"{kind}: .using(...) has no effect on a callback; give its options to"
                        f" @durable_task of {self.callbacks[kind]}."
                    )
        self._tasks: list[PlannedTask] = []
        self._joins: list[object] = []
        self._steps: dict[str, int] = {}
        self._subs: list[tuple[int, Builder]] = []
        self._wanted: set[int] = set()

    def __len__(self) -> int:
        return len(self._tasks) + sum(len(sub) for _, sub in self._subs)

    def add(
        self,
        task: Any,
        /,
        *args: Any,
        after: Any = (),
        join: str | int = "ALL",
        on_upstream_failure: str = "SKIP",
        step: str | None = None,
        approval: str | None = None,
        hold: str | None = None,
        **kwargs: Any,
    ) -> Step:
        """Add one task; options of the call are set by ``task.using(...)``. Returns its step.

        ``after``: steps, Task objects or ids, also as a mapping to MUST_SUCCEED, MUST_FINISH or
        MUST_FAIL (or a pair of type and on_upstream_failure). ``join``: ALL, ANY or a number.
        ``approval``, ``hold``: a comment; a person opens these gates. Raises InvalidOption.
        """
        return self.add_call(
            task,
            args,
            kwargs,
            after=after,
            join=join,
            on_upstream_failure=on_upstream_failure,
            step=step,
            gates={Gate.APPROVAL: approval, Gate.HOLD: hold},
        )

    def add_call(
        self,
        task: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        after: Any = (),
        join: str | int = "ALL",
        on_upstream_failure: str = "SKIP",
        step: str | None = None,
        gates: Mapping[Gate, str | None] | None = None,
        hides_secrets: bool = False,
    ) -> Step:
        """Add one task as ``add`` does, with its arguments as a tuple and a dict, so that their
        names cannot collide. With ``hides_secrets`` the task receives results with their secrets
        masked. Raises InvalidOption.
        """
        name, options = _named(task)
        place, label, named = len(self._tasks), self._label(step, name), dict(kwargs or {})
        planned = PlannedTask(
            step=label,
            task=name,
            args=tuple(args),
            kwargs=named,
            options=options,
            gates=tuple(
                (gate.value, str(comment))
                for gate, comment in (gates or {}).items()
                if comment is not None
            ),
            on_upstream_failure=chosen(
                "on_upstream_failure", on_upstream_failure, OnUpstreamFailure
            ),
            refers=refers(label, [args, named]),
            hides_secrets=hides_secrets,
        )
        self._append(planned, join, after)
        return Step(place, self, label)

    def _append(self, task: PlannedTask, join: object, after: Any) -> None:
        self._tasks.append(task)
        self._joins.append(join)
        try:
            self._wait(len(self._tasks) - 1, [after])
        except Exception:
            del self._tasks[-1], self._joins[-1]  # a refused step must not stay without its edges
            raise

    def add_workflow(self, sub: Any, *, after: Any = (), step: str | None = None) -> Step:
        """Add a workflow as one step: its first tasks wait for ``after``, the step ends when all of
        its tasks have.

        The step is FAILED if the sub-workflow does not succeed, and is skipped if ``after`` does
        not. Its result contains what its last tasks returned, by step. Sub-workflows may contain
        sub-workflows.
        """
        if not isinstance(sub, Builder) or sub is self or sub._contains(self):
            raise InvalidOption(
                f"add_workflow({sub!r}): give a workflow that does not contain this one."
            )
        if any(known is sub for _, known in self._subs):
            raise InvalidOption(
                f"add_workflow: {sub.name!r} is a part of this workflow already; build it twice."
            )
        place, label = len(self._tasks), self._label(step, sub.name)
        self._append(PlannedTask(step=label, task=END), "ALL", after)
        self._subs.append((place, sub))
        return Step(place, self, label)

    def _contains(self, builder: Builder) -> bool:
        return any(sub is builder or sub._contains(builder) for _, sub in self._subs)

    def _label(self, step: str | None, name: str) -> str:
        if step is not None:
            if checked_key("step", step) in self._steps:
                raise InvalidOption(
                    f"step={step!r} is taken in the workflow {self.name!r}; give another name."
                )
            self._steps[step] = 1
            return step
        short = name.rpartition(".")[2]
        self._steps[short] = number = self._steps.get(short, 0) + 1
        if number == 1:
            return short
        label = f"{short}-{number}"
        if label in self._steps:
            return self._label(None, label)
        self._steps[label] = 1
        return label

    # Edges ----------------------------------------------------------------------------------------

    def _wait(self, place: int, upstreams: Iterable[Any]) -> None:
        edges = {edge.upstream: edge for edge in self._tasks[place].edges}
        for upstream, kind in rules.flat(upstreams):
            edge = self._edge(place, upstream, kind)
            before = edges.setdefault(edge.upstream, edge)
            if before != edge:
                raise InvalidOption(
                    f"{self._tasks[place].step!r} waits twice for the same task: {before.kind} and"
                    f" {edge.kind}."
                )
        self._tasks[place] = replace(self._tasks[place], edges=tuple(edges.values()))

    def _edge(self, place: int, upstream: Any, kind: Any) -> rules.PlannedEdge:
        kind, policy = rules.wish("after", kind)
        if not isinstance(upstream, Step):
            return rules.PlannedEdge(upstream=rules.upstream_id(upstream), kind=kind, policy=policy)
        if upstream.builder is not self:
            raise InvalidOption(
                f"after={upstream.name!r} is a step of another workflow; add that one by"
                " add_workflow()."
            )
        if upstream.place == place:
            raise DependencyCycle(f"{upstream.name!r} cannot wait for itself.")
        return rules.PlannedEdge(upstream=upstream.place, kind=kind, policy=policy)

    # The plan -------------------------------------------------------------------------------------

    def plan(self, *, most_tasks: int, most_edges: int) -> Plan:
        """Return the checked plan; raises DependencyCycle with the path, InvalidReference,
        WorkflowTooLarge.
        """
        if not self._tasks:
            raise InvalidOption(f"The workflow {self.name!r} has no tasks.")
        tasks: list[PlannedTask] = []
        scopes: list[Scope] = []
        self._place(tasks, scopes, parent=None, end=None, before=())
        plan = Plan(tasks=tuple(tasks), scopes=tuple(scopes))
        for what, number, most in (
            ("tasks", len(tasks), most_tasks),
            ("edges", plan.edges, most_edges),
        ):
            if number > most:
                raise WorkflowTooLarge(
                    f"The workflow {self.name!r} has {number:,} {what}, at most {most:,} are"
                    f" allowed (DURABLE_TASKS['WORKFLOW_MAX_TASKS'])."
                )
        upstreams = above(tasks)
        if path := rules.cycle_in(upstreams):
            raise DependencyCycle(
                "The tasks wait for each other: " + " -> ".join(tasks[place].step for place in path)
            )
        check_references(tasks, upstreams)
        return plan

    def _place(
        self,
        tasks: list[PlannedTask],
        scopes: list[Scope],
        *,
        parent: int | None,
        end: int | None,
        before: Sequence[rules.PlannedEdge],
    ) -> list[int]:
        """Append the tasks of this workflow and of its sub-workflows; return the positions of its
        last tasks.
        """
        first, scope = len(tasks), len(scopes)
        scopes.append(
            Scope(
                name=self.name,
                parent=parent,
                end=end,
                deadline=self.deadline,
                callbacks=self.callbacks,
            )
        )
        needs_before = before if parent is not None else ()
        for place, task in enumerate(self._tasks):
            # Positions of upstreams begin at ``first`` now.
            edges = tuple(
                edge
                if isinstance(edge.upstream, uuid.UUID)
                else replace(edge, upstream=first + edge.upstream)
                for edge in task.edges
            )
            roots = self._before(place, needs_before)
            tasks.append(
                replace(
                    task,
                    edges=edges + roots,
                    scope=scope,
                    args=_moved(task.args, first, self),
                    kwargs=_moved(task.kwargs, first, self),
                    needed=rules.needed_of(self._joins[place], len(edges)),
                )
            )
        for place, sub in self._subs:
            if not sub._tasks:
                raise InvalidOption(f"The sub-workflow {sub.name!r} has no tasks.")
            end, needs_results = first + place, place in self._wanted
            last = sub._place(tasks, scopes, parent=scope, end=end, before=tasks[end].edges)
            upstreams = {edge.upstream for edge in tasks[end].edges}
            edges = tasks[end].edges + tuple(
                rules.PlannedEdge(upstream=step, policy=OnUpstreamFailure.FAIL.value)
                for step in last
                if step not in upstreams
            )
            results = (
                {tasks[step].step: rules.Reference(step, None) for step in last}
                if needs_results
                else {}
            )
            tasks[end] = replace(tasks[end], edges=edges, kwargs=results, refers=needs_results)
        upstream_of_another = {edge.upstream for task in tasks[first:] for edge in task.edges}
        return [
            place
            for place in range(first, first + len(self._tasks))
            if place not in upstream_of_another
        ]

    def _before(
        self, place: int, before: Sequence[rules.PlannedEdge]
    ) -> tuple[rules.PlannedEdge, ...]:
        """Return the upstreams of the workflow that apply to this task: none if another task of the
        workflow is its upstream.
        """
        task, join = self._tasks[place], self._joins[place]
        if any(isinstance(edge.upstream, int) for edge in task.edges) or not before:
            return ()
        if rules.needed_of(join, len(task.edges) or 1) is not None:
            raise InvalidOption(
                f"{task.step!r} is a first task of the sub-workflow {self.name!r}, which waits for"
                f" others: beside tasks that exist already it needs join='ALL', not {join!r}."
            )
        upstreams = {edge.upstream for edge in task.edges}
        return tuple(edge for edge in before if edge.upstream not in upstreams)


class AddedTasks(Builder):
    """The tasks that a running task adds to its own workflow. They are written in the transaction
    of its success, or not at all.
    """


_DECIDED_BY_WORKFLOW = {
    "depends_on": "give after=... to .add()",
    "join": "give join=... to .add()",
    "on_upstream_failure": "give on_upstream_failure=... to .add()",
    "tenant": "give tenant=... to .start(), for all tasks",
    "task_id": "its tasks get new ids, which .start() returns",
}
"""Options of a call that a task of a workflow cannot have, and what to give instead."""


def _named(task: Any) -> tuple[str, CallOptions]:
    registered = getattr(task, "registered", None)
    if registered is not None:
        options: CallOptions = task.options
        for option, instead in _DECIDED_BY_WORKFLOW.items():
            if getattr(options, option) not in (None, "ALL"):
                raise InvalidOption(
                    f"{registered.options.name}.using({option}=...) has no effect in a workflow:"
                    f" {instead}."
                )
        return str(registered.options.name), options
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        raise InvalidOption(
            f"{task!r} is no durable task: give a function under @durable_task, or its .using(...)."
        )
    return name, CallOptions()


def _moved(value: Any, first: int, builder: Builder) -> Any:
    if isinstance(value, rules.Reference):
        if value.builder is None:
            return value
        if value.builder is not builder:
            raise InvalidReference(
                "A result of another workflow cannot be referred to; add it by add_workflow()."
            )
        return replace(value, place=value.place + first, builder=None)
    if isinstance(value, Mapping):
        return {key: _moved(item, first, builder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_moved(item, first, builder) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


FollowUp = Schedule | Builder
"""A task or a workflow that is created in the transaction of a success."""
