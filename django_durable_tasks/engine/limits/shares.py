"""Admits claimed tasks that no limit but the fair shares of their tenants can refuse.

The tasks of a queue are admitted together if each tenant stays within its share. Only the tasks of
other queues are judged one by one, by ``admission``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from django.db.models import Count, Q

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.arrays import text_array
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.limits import backpressure, usage
from django_durable_tasks.engine.limits.config import LimitConfig
from django_durable_tasks.engine.limits.usage import Usage
from django_durable_tasks.engine.transitions import ClaimedTask
from django_durable_tasks.rules.limits import options as rules
from django_durable_tasks.rules.limits.admission import Capacity, share_of
from django_durable_tasks.rules.states import Status


class ShareAdmission:
    """Admits whole queues in one claim, inside its transaction; ``capacity`` is that of the claim.

    The tasks of a queue are counted once. Shares of the window need no lock. Customers may have
    half of the processes of a queue, so a claim with tasks of theirs takes the lock of limits.
    """

    def __init__(self, limit_config: LimitConfig, capacity: Capacity) -> None:
        self._limit_config, self._capacity = limit_config, capacity
        self._usage, self._counted = Usage(), set[str]()

    def exceeding(self, claimed: Sequence[ClaimedTask]) -> set[str]:
        """Return the queues in which a tenant exceeds its share with these tasks. For the other
        queues the tasks are counted as admitted.
        """
        claims: dict[str, Counter[int]] = {}
        selected: Counter[tuple[str, int]] = Counter()
        for task in claimed:
            claims.setdefault(task.queue, Counter())[task.tenant_id] += 1
            waited = task.waiting_for_limit
            if waited is not None and is_selected(
                waited, task.queue, task.tenant_id, self._limit_config
            ):
                selected[task.queue, task.tenant_id] += 1
        self._count(claims)
        found = set[str]()
        for queue, numbers in claims.items():
            # A task that was selected among those that wait for the share is not refused by it.
            wanted = {
                tenant: number - selected[queue, tenant] for tenant, number in numbers.items()
            }
            if not self._take(queue, {tenant: n for tenant, n in wanted.items() if n}, numbers):
                found.add(queue)
        return found

    def _count(self, claims: dict[str, Counter[int]]) -> None:
        """Count the QUEUED tasks of queues that are not counted yet, without these claims."""
        new = [queue for queue in claims if queue not in self._counted]
        self._counted.update(new)
        if any(
            backpressure.places_of_customer(queue, tenant_id, self._limit_config) is not None
            for queue in new
            for tenant_id in claims[queue]
        ):
            usage.lock_limits()
        for queue, tenant_id, queued, number in under_way_of(new) if new else ():
            self._usage.queued[queue][tenant_id] = queued
            self._usage.of_tenants[queue][tenant_id] = number
        for queue in new:
            self._usage.queued[queue].subtract(claims[queue])
            self._usage.of_tenants[queue].subtract(claims[queue])

    def _take(self, queue: str, wanted: dict[int, int], owners: Collection[int]) -> bool:
        """Use the shares of these tenants if they are sufficient; return whether they were."""
        capacity, tenants = self._capacity, self._usage.tenants(queue) | set(owners)
        free: dict[str, int] = {}
        for tenant, number in wanted.items():
            scope = rules.of_share(queue, tenant)
            left = capacity.places.get(scope)
            if left is None:
                left = free_of_share((queue, tenant), self._limit_config, self._usage, tenants)
            if left < number or scope in capacity.closed:
                return False
            free[scope] = left - number
        capacity.places.update(free)
        capacity.known.update(free)
        return True


def is_selected(waited: str, queue: str, tenant_id: int, current: LimitConfig) -> bool:
    """Return whether a task that waited for this scope was selected by its share, so that the share
    does not refuse it. Not a task of a customer: its number of processes is checked by each claim.
    """
    return (
        waited == rules.of_share(queue, tenant_id)
        and backpressure.places_of_customer(queue, tenant_id, current) is None
    )


def under_way_of(queues: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """Return the number of QUEUED tasks, and of QUEUED and RUNNING tasks, of these queues by queue
    and tenant; one statement.
    """
    sql = statement("under_way_of")
    if sql is not None:
        return tables.read(sql, {"queues": text_array(queues)})
    statuses = [Status.QUEUED, Status.RUNNING]
    rows = tables.tasks().filter(queue__in=queues, status__in=statuses).order_by()
    numbers = {"queued": Count("pk", filter=Q(status=Status.QUEUED)), "number": Count("pk")}
    return list(rows.values_list("queue", "tenant_id").annotate(**numbers))


def free_of_share(
    share: tuple[str, int], current: LimitConfig, found: Usage, tenants: set[int]
) -> int:
    """Return how many more tasks of a queue one of these tenants may have QUEUED.

    If the whole queue has a concurrency limit, the share is a part of it and counts RUNNING tasks
    too. Otherwise it is a part of the window, and for a customer at most half of the processes.
    """
    queue, tenant_id = share
    wide = [most for scope in current.wide(queue) if (most := current.of(scope).places) is not None]
    if wide:
        return share_of(min(wide), len(tenants)) - found.of_tenants[queue][tenant_id]
    free = (
        share_of(max(backpressure.window_of(queue), found.window(queue)), len(tenants))
        - found.queued[queue][tenant_id]
    )
    places = backpressure.places_of_customer(queue, tenant_id, current)
    return free if places is None else min(free, places - found.of_tenants[queue][tenant_id])
