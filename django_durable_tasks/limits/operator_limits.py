"""Sets and removes an operator's limits, and describes limits and the tasks that wait for them.

Called by the admin and the command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from django.db.models import Count, Max
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import process_state
from django_durable_tasks.audit import current_actor, recorded
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.limits import config, release, waitlist
from django_durable_tasks.limits import scopes as limits_scopes
from django_durable_tasks.limits.scopes import no_worker, waiting
from django_durable_tasks.models import Limit, Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.operations import Argument, Target, operation
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.tables import database, locked_for_change, tasks

_NOT_IN_API = "an operator sets the limits of tenants"


@operation(
    Target.LIMIT,
    name="set",
    title=_("Set a limit"),
    help=_(
        "Limits how many tasks of a scope run at the same time or start in a period. It replaces"
        " limits of code and settings, within a second in all processes."
    ),
    permission="change_limit",
    not_in_api=_NOT_IN_API,
    confirm=False,
    counted="set",
    done=_("Set the limit of %(subject)s."),
)
def set_limit(
    scope: str,
    *,
    max_concurrency: Annotated[
        int | None,
        Argument(
            _("Max concurrency"),
            _("How many tasks are published or running at the same time."),
            metavar="N",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        Argument(
            _("Rate"),
            _("How many tasks start per second, minute, hour or day, for example 10/m."),
            metavar="N/UNIT",
        ),
    ] = None,
    burst: Annotated[
        float | None,
        Argument(
            _("Burst"),
            _("How many tasks of the rate may start at once after a pause."),
            metavar="N",
        ),
    ] = None,
    seen_at: datetime | None = None,
) -> None:
    """Set the limit of a scope, which overrides code and settings; effective within one second.

    Raises InvalidOption. With ``seen_at``, raises TransitionRefused unless the limit was last set
    at that time.
    """
    options = {"max_concurrency": max_concurrency, "rate": rate, "burst": burst}
    limits_scopes.allowance_of(
        scope, {name: value for name, value in options.items() if value is not None}
    )
    values = {
        "max_concurrency": max_concurrency,
        "rate": rate or "",
        "burst": burst,
        "comment": current_actor().reason[:500],
        "set_by": current_actor().by[:200],
        "set_at": DatabaseNow(),
    }
    limits = Limit.objects.using(database())
    with recorded("limit.set") as entry:
        before = _values_of(scope)
        if seen_at is None:
            limits.update_or_create(scope=scope, defaults=values)
        elif not limits.filter(pk=scope, set_at=seen_at).update(**values):
            raise TransitionRefused(
                f"The limit of {scope} was changed or removed meanwhile: read it again."
            )
        entry.changed("limit", scope, before, _values_of(scope))
    process_state.of(config.RecentLimits).expire()


def _values_of(scope: str) -> dict[str, Any]:
    """Return the limit of a scope for the audit entry, and lock its row; empty without one."""
    rows = locked_for_change(Limit.objects.using(database()).filter(pk=scope))
    values = rows.values("max_concurrency", "rate", "burst", "comment", "set_by").first()
    return dict(values) if values else {}


@operation(
    Target.LIMIT,
    name="remove",
    title=_("Remove the limit"),
    help=_("Limits of code and settings apply again."),
    permission="delete_limit",
    not_in_api=_NOT_IN_API,
    counted="removed",
    done=_("Removed the limit of %(subject)s. Limits of code and settings apply."),
    unchanged=_("No operator has set a limit of %(subject)s."),
)
def remove_limit(scope: str) -> bool:
    """Remove an operator's limit, so that code and settings apply again; return False if there was
    none.
    """
    with recorded("limit.remove") as entry:
        before = _values_of(scope)
        removed, _by_model = Limit.objects.using(database()).filter(pk=scope).delete()
        if removed:
            entry.changed("limit", scope, before, {})
    process_state.of(config.RecentLimits).expire()
    return bool(removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUsage:
    """A limit and its usage: ``taken`` is the weight of QUEUED and RUNNING tasks, ``waiting``
    the number of waiting tasks, with the due ones that no scheduler claims while a limit of all
    tasks of their queue is used up.

    ``too_heavy`` is the weight of the heaviest waiting task, if it exceeds the whole limit, so that
    the task can never start. ``source`` is CODE, OPERATOR, KEY (a ``PerKey`` in code), TENANT_SHARE
    (a tenant's share of a queue), ENDPOINT (its circuit breaker is open), WORKER (no live worker of
    the queue has the task) or REMOVED.
    """

    scope: str
    source: str
    max_concurrency: int | None = None
    taken: int = 0
    rate: str = ""
    tokens: float | None = None
    waiting: int = 0
    too_heavy: int | None = None


def limit_usages(due: Mapping[str, int]) -> list[LimitUsage]:
    """Return every configured limit and every scope with waiting tasks, ordered by scope.

    ``due``: the number of due tasks of each queue that is not paused.
    """
    limit_config, current_usage, now = config.read(), waitlist.count_usage(), database_now()
    groups = tasks().waiting_for_limit().order_by().values_list("waiting_for_limit")
    counts = groups.annotate(number=Count("pk"), most=Max("weight"))
    waiting = {scope: (number, most) for scope, number, most in counts if scope is not None}
    scopes = sorted({*limit_config.scopes, *waiting})
    allowed = {scope: release.allowed(scope, limit_config) for scope in scopes}
    rates = {
        scope: allowance.rate for scope, allowance in allowed.items() if allowance.rate is not None
    }
    buckets = waitlist.seen_buckets(rates, now)
    operators = set(Limit.objects.using(database()).values_list("pk", flat=True))
    behind, usages = Counter[str](), list[LimitUsage]()
    for queue, number in due.items():
        behind.update(dict.fromkeys(limit_config.wide(queue), number))
    for scope in scopes:
        limit, (count, heaviest) = allowed[scope], waiting.get(scope, (0, 0))
        taken, tokens = current_usage.under_way[scope], None
        if limit.rate is not None:
            tokens = round(min(buckets[scope].tokens, limit.rate.holds(heaviest)), 3)
        is_full = (limit.places is not None and taken >= limit.places) or (
            tokens is not None and tokens < 1
        )
        is_too_heavy = limit.heaviest is not None and heaviest > max(1, limit.heaviest)
        usages.append(
            LimitUsage(
                scope=scope,
                source=_source(scope, limit_config, operators),
                max_concurrency=limit.places,
                taken=taken,
                rate=str(limit.rate or ""),
                tokens=tokens,
                waiting=count + behind[scope] if is_full else count,
                too_heavy=heaviest
                if is_too_heavy and limits_scopes.worker_of(scope) is None
                else None,
            )
        )
    return usages


def limits_with_waiting_tasks(due: Mapping[str, int]) -> list[LimitUsage]:
    """Return the limits with waiting tasks; one statement if no task waits or is due. ``due`` as
    for ``limit_usages``.
    """
    queues = [queue for queue, number in due.items() if number]
    limit_config = config.read() if queues else None
    is_bound = limit_config is not None and any(map(limit_config.wide, queues))
    if not is_bound and not tasks().waiting_for_limit().exists():
        return []
    return [usage for usage in limit_usages(due) if usage.waiting]


def limit_waits(usages: Sequence[LimitUsage]) -> list[str]:
    """Return a sentence for each limit that tasks wait for, and one for all shares of a queue."""
    texts, shares = list[str](), dict[str, list[int]]()
    for limit in usages:
        worker, share = limits_scopes.worker_of(limit.scope), limits_scopes.shared(limit.scope)
        if worker is not None:
            texts.append(no_worker(*worker, limit.waiting))
        elif share is not None:
            shares.setdefault(share[0], []).append(limit.waiting)
        else:
            used = ""
            if limit.max_concurrency is not None:
                used += f", {limit.taken} of {limit.max_concurrency} taken"
            if limit.tokens is not None:
                used += f", {limit.tokens:g} starts free at {limit.rate}"
            texts.append(f"{waiting(limit.waiting)} for the limit {limit.scope}{used}.")
    return texts + [
        f"{waiting(sum(numbers))} for the shares of"
        f" {'1 tenant' if len(numbers) == 1 else f'{len(numbers)} tenants'} in queue {queue}."
        for queue, numbers in shares.items()
    ]


def _source(scope: str, limit_config: config.LimitConfig, operators: set[str]) -> str:
    if scope in limit_config.endpoints:
        return "ENDPOINT"
    if (worker := limits_scopes.worker_of(scope)) is not None:
        return "WORKER" if limit_config.lacks_worker(*worker) else "REMOVED"
    if scope not in limit_config.scopes and limit_config.is_of_each_tenant(scope):
        scope = limits_scopes.EACH_TENANT
    if scope in operators:
        return "OPERATOR"
    if scope in limit_config.scopes:
        return "CODE"
    if limits_scopes.shared(scope) is not None:
        return "TENANT_SHARE"
    return "KEY" if scope.startswith("key:") and limit_config.per_key else "REMOVED"


def why(task: Task) -> str:
    """Return a sentence with what a PENDING task waits for; empty if no limit delays it."""
    if task.status != Status.PENDING:
        return ""
    limit_config = config.limits_in_force()
    if task.waiting_for_limit is not None and task.is_waiting:
        share = limits_scopes.shared(task.waiting_for_limit)
        if share is not None:
            return f"It waits for its turn: its tenant has its fair share of queue {share[0]}."
        return _sentence(task.waiting_for_limit, task, limit_config)
    if task.is_waiting or not limit_config.wide(task.queue):
        return ""
    usage = waitlist.count_usage()
    full = (
        scope
        for scope in limit_config.wide(task.queue)
        if (places := limit_config.of(scope).places) is not None
        and usage.under_way[scope] + task.weight > places
    )
    scope = next(full, None)
    return "" if scope is None else _sentence(scope, task, limit_config)


def _sentence(scope: str, task: Task, limit_config: config.LimitConfig) -> str:
    if scope in limit_config.endpoints:
        return (
            f"It waits until the endpoint {scope.removeprefix('key:')} accepts requests again: its"
            " circuit breaker is open, and one request at a time probes it."
        )
    if (worker := limits_scopes.worker_of(scope)) is not None and limit_config.lacks_worker(
        *worker
    ):
        return "It waits until a worker of its queue has the task."
    usage, allowance, details = waitlist.count_usage(), release.allowed(scope, limit_config), []
    if allowance.heaviest is not None and task.weight > max(1, allowance.heaviest):
        return (
            f"It can never start: it weighs {task.weight}, and the whole limit {scope} is"
            f" {allowance.heaviest}. Raise the limit, or give the task a smaller weight."
        )
    if allowance.places is not None:
        details.append(f"{usage.under_way[scope]} of {allowance.places} taken")
    if allowance.rate is not None:
        bucket = waitlist.seen_buckets({scope: allowance.rate}, database_now())[scope]
        tokens = min(bucket.tokens, allowance.rate.holds(task.weight))
        details.append(f"{limits_scopes.whole(tokens)} starts free at {allowance.rate}")
    if not details:
        return (
            f"It waited for the limit {scope}, which no longer exists. A scheduler will release it."
        )
    weight = f"; it weighs {task.weight}" if task.weight > 1 else ""
    return f"It waits for the limit {scope}, {', '.join(details)}{weight}."
