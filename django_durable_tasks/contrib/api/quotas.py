"""Enforces quotas and request rates of tenants, and records that one was exceeded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from django.core.checks import CheckMessage, register
from django.db import connections
from django.db.models import ExpressionWrapper, F, QuerySet
from django.db.models.functions import Greatest
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf, process_state
from django_durable_tasks.audit import current_actor, recorded
from django_durable_tasks.checks import FINDINGS, valid_settings
from django_durable_tasks.choices import OPEN, RecurringStatus, Status
from django_durable_tasks.contrib.api.models import TenantQuota
from django_durable_tasks.exceptions import InvalidOption, PayloadTooLarge, QuotaExceeded
from django_durable_tasks.limits.config import limits_in_force
from django_durable_tasks.limits.scopes import rate_of, scope_of_tenant
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    Calendar,
    LimitBucket,
    RecurringTask,
    Task,
    Tenant,
)
from django_durable_tasks.models.fields import InstantField, constant
from django_durable_tasks.operations import Argument, Target, operation
from django_durable_tasks.signals import quota_refused
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import aware, estimated_now
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.texts import did_you_mean

# The rate is a GCRA (generic cell rate algorithm, ITU-T I.371): one time per tenant, at which its
# whole window would be free again. A request moves it by the interval of one request.


NUMBERS = ("open_tasks", "recurring_tasks", "runs_per_day", "calendars", "payload_bytes")
REQUESTS = "requests"
_MOST = 1_000_000_000
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A number of requests in a window of seconds; a whole window may arrive at once."""

    number: int
    seconds: int

    def __str__(self) -> str:
        units = {1: "s", 60: "m", 3_600: "h", 86_400: "d"}
        return f"{self.number}/{units[self.seconds]}"

    @property
    def interval(self) -> int:
        """Microseconds of the window that one request takes, at least 1."""
        return max(1, self.seconds * _MICROSECONDS // self.number)

    @property
    def window(self) -> int:
        """The window in microseconds."""
        return self.interval * self.number

    def taken_by(self, requests: int) -> int:
        """Microseconds of the window that these requests take together, at most all of it."""
        return self.interval * min(requests, self.number)

    def decision(self, admitted: bool, ahead: int, requests: int = 1) -> RateDecision:
        """Return what is left if the window is free ``ahead`` microseconds from now."""
        ahead = min(max(ahead, 0), self.window)
        remaining = max(0, (self.window - ahead) // self.interval)
        wait = 0 if admitted else max(0, ahead + self.taken_by(requests) - self.window)
        return RateDecision(self, admitted, remaining, _seconds(ahead), _seconds(wait))


@dataclass(frozen=True, slots=True)
class RateDecision:
    """Whether a request is admitted.

    ``left``: further requests that would be admitted now. ``reset``: seconds until the whole
    window is free. ``retry_after``: seconds until this request is admitted; 0 if it is.
    """

    rate: RequestRate
    admitted: bool
    left: int
    reset: int
    retry_after: int


def _seconds(microseconds: int) -> int:
    return math.ceil(microseconds / _MICROSECONDS)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one tenant; None means without limit."""

    open_tasks: int | None = None
    recurring_tasks: int | None = None
    runs_per_day: int | None = None
    calendars: int | None = None
    payload_bytes: int | None = None
    requests: RequestRate | None = None


def quotas_of(values: Mapping[str, Any]) -> Quotas:
    """Return the quotas of a mapping like ``{"open_tasks": 10_000, "requests": "600/m"}``. Raises
    InvalidOption.
    """
    for name in values:
        if name not in (*NUMBERS, REQUESTS):
            raise InvalidOption(f"{name!r} is no quota. {did_you_mean(name, (*NUMBERS, REQUESTS))}")
    numbers = {name: number_of(name, values.get(name)) for name in NUMBERS}
    return Quotas(**numbers, requests=request_rate_of(values.get(REQUESTS)))


def number_of(name: str, value: object) -> int | None:
    """Return a checked quota; raises InvalidOption."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise InvalidOption.of(name, value, f"give a whole number from 0 to {_MOST:,}, or None.")
    return value


def request_rate_of(text: object) -> RequestRate | None:
    """Return the rate of a text like ``"600/m"``; None for None or "". Raises InvalidOption."""
    if text is None or text == "":
        return None
    rate = rate_of(REQUESTS, text)
    if rate.number > rate.seconds * _MICROSECONDS:
        raise InvalidOption.of(REQUESTS, text, "give at most a million requests a second.")
    return RequestRate(rate.number, int(rate.seconds))


# Enforces the quotas of tenants, in the transaction of what they count.
#
# Open tasks are not counted for each new task. A count grants a number of creations, each of which
# is used up by one conditional UPDATE. When none is left, the open tasks are counted again. Both
# lock the row of the tenant's quota until the transaction ends, so that concurrent requests cannot
# exceed the quota together. Tasks that the project itself creates are counted with the next count.
# Schedules create no task above the quota, and wait for no lock of a request.


_GRANTED = 1_000
"""Open tasks are counted again after at most this number of creations."""
_COUNTED = 10_000
"""Usage without a quota is counted up to this number."""
_COUNTED_AGAIN = timedelta(seconds=1)
"""A tenant without a free place is not counted again for each of its schedules, which would let it
slow down the leader.
"""


def tenant_quotas(tenant: Tenant) -> Quotas:
    """Return the quotas of a tenant: its own values, otherwise those of QUOTAS."""
    row = getattr(tenant, "quota", None)
    values = conf.quotas()
    for name in (*NUMBERS, REQUESTS):
        value = getattr(row, name, None)
        if value not in (None, ""):
            values[name] = value
    if tenant.pk == DEFAULT_TENANT_ID:
        # No index finds the open tasks of the default tenant, which are the project's own.
        values = {REQUESTS: values.get(REQUESTS)}
    return quotas_of(values)


def runs_per_day(tenant: Tenant) -> int | None:
    """Return how often a recurring task of the tenant may run in a day; None for any number."""
    return tenant_quotas(tenant).runs_per_day


def _number(label: Any, text: Any) -> Argument:
    return Argument(label, text, minimum=0, metavar="N")


@operation(
    Target.TENANT,
    title=_("Set quotas"),
    help=_(
        "Limits what a tenant may create through the HTTP API. Quotas that are not given keep"
        " their values. How many of its tasks run at the same time or start in a period is set by"
        " the limit of the scope tenant:ID."
    ),
    permission="durable_tasks_api.set_tenantquota",
    not_in_api="an operator sets the quotas of tenants",
    confirm=False,
    counted="set",
    done=_("Set the quotas of %(subject)s."),
)
def set_quotas(
    tenant: Tenant,
    *,
    open_tasks: Annotated[
        int | None, _number(_("Open tasks"), _("The most tasks that have not ended."))
    ] = None,
    recurring_tasks: Annotated[
        int | None,
        _number(_("Recurring tasks"), _("The most recurring tasks that are not cancelled.")),
    ] = None,
    runs_per_day: Annotated[
        int | None,
        _number(
            _("Runs of a recurring task in a day"),
            _("The most fire times of one recurring task in a day."),
        ),
    ] = None,
    calendars: Annotated[int | None, _number(_("Calendars"), _("The most calendars."))] = None,
    payload_bytes: Annotated[
        int | None,
        _number(_("Bytes of the arguments"), _("The largest arguments of one task, as JSON.")),
    ] = None,
    requests: Annotated[
        str | None,
        Argument(
            _("Requests"), _("Requests to the HTTP API in a period: 600/m, 10/s."), metavar="RATE"
        ),
    ] = None,
    reset: Annotated[
        bool,
        Argument(_("Reset"), _("Quotas that are not given get the values of the setting QUOTAS.")),
    ] = False,
) -> None:
    """Set the quotas that are given; with ``reset`` the others get the values of QUOTAS. Raises
    InvalidOption.
    """
    numbers = (open_tasks, recurring_tasks, runs_per_day, calendars, payload_bytes)
    checked: dict[str, Any] = {
        name: number_of(name, value)
        for name, value in zip(NUMBERS, numbers, strict=True)
        if reset or value is not None
    }
    if reset or requests is not None:
        request_rate_of(requests)
        checked[REQUESTS] = requests or ""
    if tenant.pk == DEFAULT_TENANT_ID and set(checked) - {REQUESTS}:
        raise InvalidOption.of(
            "tenant",
            tenant.slug,
            f"the default tenant has only the quota {REQUESTS!r}. Give each customer a"
            " tenant of its own.",
        )
    actor = current_actor()
    with recorded("tenant.set_quotas") as entry:
        row = _locked(tenant)
        before = {name: getattr(row, name) for name in checked}
        tables.unguarded(TenantQuota).filter(pk=tenant.pk).update(
            **checked,
            creations_left=0,
            set_by=actor.by[:200],
            reason=actor.reason[:500],
            set_at=estimated_now(),
        )
        entry.changed("tenant", tenant.pk, before, checked, tenant.pk)


def _locked(tenant: Tenant) -> TenantQuota:
    """Return the locked row of a tenant's quota; inserts it if it is missing."""
    rows = tables.locked_for_change(tables.unguarded(TenantQuota).filter(pk=tenant.pk))
    row = rows.first()
    if row is None:
        tables.unguarded(TenantQuota).bulk_create(
            [TenantQuota(tenant_id=tenant.pk)], ignore_conflicts=True
        )
        row = rows.get()
    return row


def charge_some_open_tasks(tenant: Tenant, number: int) -> int:
    """Charge up to ``number`` tasks that this transaction will create; return how many."""
    most = tenant_quotas(tenant).open_tasks
    if most is None or number < 1:
        return number
    remaining = _locked(tenant).creations_left
    if remaining < number:
        remaining = max(0, most - _counted(open_tasks(tenant.pk), most))
    admitted = min(number, remaining)
    tables.unguarded(TenantQuota).filter(pk=tenant.pk).update(
        creations_left=min(remaining - admitted, _GRANTED)
    )
    return admitted


def quota_of_open_tasks(tenant: Tenant) -> QuotaExceeded:
    """Return the error for a task above the quota."""
    most = tenant_quotas(tenant).open_tasks or 0
    return QuotaExceeded(
        f"open_tasks: the tenant may have {most:,} open tasks and has as many.",
        quota="open_tasks",
        limit=most,
        used=most,
    )


def _exceeded(name: str, most: int, used: int) -> QuotaExceeded:
    kind = name.replace("_", " ")
    return QuotaExceeded(
        f"{name}: the tenant may have {most:,} {kind} and has {used:,}.",
        quota=name,
        limit=most,
        used=used,
    )


def charge_open_tasks(tenant: Tenant, created: int) -> None:
    """Charge tasks that this transaction has created or opened again; raises QuotaExceeded.

    The caller's transaction contains the tasks, so that it writes both or neither.
    """
    most = tenant_quotas(tenant).open_tasks
    if most is None or created < 1:
        return
    row = tables.unguarded(TenantQuota).filter(pk=tenant.pk)
    if row.filter(creations_left__gte=created).update(creations_left=F("creations_left") - created):
        return
    _locked(tenant)
    used = _counted(open_tasks(tenant.pk), most)
    if used > most:
        raise _exceeded("open_tasks", most, used - created)
    row.update(creations_left=min(most - used, _GRANTED))


@dataclass(slots=True)
class OpenTaskQuota:
    """How many tasks a transaction may create for a tenant; ``limit`` is its quota."""

    limit: int
    left: int

    def take(self) -> bool:
        """Use up one creation; return False if none is left."""
        self.left -= 1
        return self.left >= 0


class _Full:
    """When this process last found that a tenant may open no further task."""

    def __init__(self) -> None:
        self.since: dict[int, datetime] = {}


def admit_open_tasks(numbers: Mapping[int, int], now: datetime) -> dict[int, OpenTaskQuota]:
    """Charge up to ``numbers`` tasks, by tenant id, that this transaction will create without a
    request; return what is admitted of each tenant with a quota.

    Never waits: if a request has locked the row of a quota, the open tasks are counted and nothing
    is charged, so that a tenant may exceed its quota by what that request creates. A tenant without
    a free place is counted at most once a second.
    """
    tenants = sorted(numbers.keys() - {DEFAULT_TENANT_ID})
    if not tenants:
        return {}
    limits_of_tenants = dict(
        tables.unguarded(TenantQuota).filter(pk__in=tenants).values_list("pk", "open_tasks")
    )
    general = quotas_of(conf.quotas()).open_tasks
    limits = {
        pk: general if limits_of_tenants.get(pk) is None else limits_of_tenants[pk]
        for pk in tenants
    }
    bounded = {pk: most for pk, most in limits.items() if most is not None}
    if not bounded:
        return {}
    full = process_state.of(_Full).since
    rows = tables.locked_for_change(
        tables.unguarded(TenantQuota).filter(pk__in=bounded), skip_locked=True
    )
    granted = dict(rows.order_by("pk").values_list("pk", "creations_left"))
    quotas = {}
    for pk, most in bounded.items():
        number, remaining = numbers[pk], granted.get(pk)
        if remaining is not None and remaining >= number:
            admitted, remaining = number, remaining - number
        elif pk in full and timedelta(0) <= now - full[pk] < _COUNTED_AGAIN:
            admitted, remaining = 0, None
        else:
            free = max(0, most - _counted(open_tasks(pk), most))
            admitted = min(number, free)
            remaining = None if remaining is None else min(free - admitted, _GRANTED)
            full.pop(pk, None)
            if not free and len(full) < _COUNTED:
                full[pk] = now
        if remaining is not None:
            tables.unguarded(TenantQuota).filter(pk=pk).update(creations_left=remaining)
        quotas[pk] = OpenTaskQuota(most, admitted)
    return quotas


def open_tasks(tenant_id: int) -> QuerySet[Task]:
    """Return the open tasks of a tenant, which an index finds unless it is the default tenant."""
    return tables.tasks().filter(
        tenant_id=tenant_id, status__in=sorted(OPEN), completed_at__isnull=True
    )


def _counted(rows: QuerySet[Any], most: int) -> int:
    return int(rows.order_by().values("pk")[: most + _GRANTED].count())


def charge(tenant: Tenant, name: str) -> None:
    """Check the number of recurring tasks or calendars after one was created; raises
    QuotaExceeded.
    """
    most = getattr(tenant_quotas(tenant), name)
    if most is None:
        return
    _locked(tenant)
    used = _counted(_objects(tenant.pk)[name], most)
    if used > most:
        raise _exceeded(name, most, used - 1)


def _objects(tenant_id: int) -> dict[str, QuerySet[Any]]:
    """Return the objects of a tenant that a quota counts, by the name of the quota."""
    schedules = RecurringTask.objects.using(tables.database()).filter(tenant_id=tenant_id)
    return {
        "recurring_tasks": schedules.exclude(status=RecurringStatus.CANCELLED),
        "calendars": Calendar.objects.using(tables.database()).filter(tenant_id=tenant_id),
    }


def check_payload(tenant: Tenant, arguments: Any) -> None:
    """Raise PayloadTooLarge if the arguments as JSON are larger than the tenant's quota."""
    most = tenant_quotas(tenant).payload_bytes
    if most is None:
        return
    size = len(json.dumps(arguments, separators=(",", ":"), ensure_ascii=False).encode())
    if size > most:
        raise PayloadTooLarge(
            f"payload_bytes: the arguments have {size:,} bytes as JSON; the tenant may send"
            f" {most:,}.",
            quota="payload_bytes",
        )


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """A quota and its usage. ``limit`` is None without a limit; ``used`` is None if it is not
    counted.
    """

    name: str
    limit: Any
    used: int | None


def usage(tenant: Tenant) -> list[QuotaUsage]:
    """Return the quotas of a tenant with their usage, counted up to the limit or 10,000.

    ``concurrency`` and ``runs`` are the limits of the scope ``tenant:<id>``, which the claim
    enforces: tasks above them wait and are not refused.
    """
    quotas, limit = tenant_quotas(tenant), limits_in_force().of(scope_of_tenant(tenant.pk))
    opened = open_tasks(tenant.pk)
    running = opened.filter(status__in=[Status.QUEUED, Status.RUNNING])
    return [
        QuotaUsage("open_tasks", quotas.open_tasks, _used(opened, quotas.open_tasks)),
        *(
            QuotaUsage(name, getattr(quotas, name), _used(rows, getattr(quotas, name)))
            for name, rows in _objects(tenant.pk).items()
        ),
        QuotaUsage("runs_per_day", quotas.runs_per_day, None),
        QuotaUsage("payload_bytes", quotas.payload_bytes, None),
        QuotaUsage("concurrency", limit.places, _used(running, limit.places)),
        QuotaUsage("runs", None if limit.rate is None else str(limit.rate), None),
    ]


def _used(rows: QuerySet[Any], limit: int | None) -> int:
    return int(rows.order_by().values("pk")[: max(_COUNTED, (limit or 0) + 1)].count())


# The request rate of tenants in the database.
#
# The bucket of a tenant contains when it is full again, which may be in the future: each request
# moves this time by the part of the window that it takes (``values.RequestRate``).


_SKEW = timedelta(minutes=1)
"""The largest difference between the times of concurrent requests."""
_MICROSECOND = timedelta(microseconds=1)


def request_buckets(tenant_id: int) -> QuerySet[LimitBucket]:
    """Return the bucket of the requests of a tenant, if it has sent some."""
    scope = f"requests:{tenant_id}"
    return LimitBucket.objects.using(tables.database()).filter(pk=scope)


def admit_requests(
    tenant_id: int, rate: RequestRate, now: datetime, requests: int = 1
) -> RateDecision:
    """Count a request, or several together, and return whether the rate admits it.

    One conditional UPDATE decides, so that concurrent requests cannot exceed the rate together. A
    bucket that is full more than a minute beyond the window, which is left from a slower rate or
    another clock, counts as full now. Within this minute it may be from a request that read its
    ``now`` later and was counted earlier.
    """
    full_at = _moved(tenant_id, rate, now, requests)
    if full_at is None:
        bucket = request_buckets(tenant_id)
        LimitBucket.objects.using(tables.database()).bulk_create(
            [LimitBucket(scope=f"requests:{tenant_id}", refilled_at=now)], ignore_conflicts=True
        )
        beyond = now + rate.window * _MICROSECOND + _SKEW
        bucket.filter(refilled_at__gt=beyond).update(refilled_at=now)
        full_at = _moved(tenant_id, rate, now, requests)
    if full_at is not None:
        return admitted(rate, full_at, now, requests)
    refused_until = request_buckets(tenant_id).values_list("refilled_at", flat=True).first()
    ahead = 0 if refused_until is None else (refused_until - now) // _MICROSECOND
    return rate.decision(False, ahead, requests)


def admitted(
    rate: RequestRate, full_at: datetime, now: datetime, requests: int = 1
) -> RateDecision:
    """Return the decision about requests that were counted; then the bucket is full again."""
    return rate.decision(True, (full_at - now) // _MICROSECOND, requests)


def rate_parameters(rate: RequestRate, now: datetime, requests: int = 1) -> dict[str, Any]:
    """Return the parameters of a statement that counts requests; durations in microseconds."""
    alone = not connections[tables.database()].in_atomic_block
    taken = rate.taken_by(requests)
    return {"now": now, "alone": alone, "taken": taken, "free": rate.window - taken}


@verb
def _moved(tenant_id: int, rate: RequestRate, now: datetime, requests: int) -> datetime | None:
    """Count the requests and return when the bucket is full again; None if the rate does not admit
    them.
    """
    taken, window = rate.taken_by(requests) * _MICROSECOND, rate.window * _MICROSECOND
    free = request_buckets(tenant_id).filter(refilled_at__lte=now + window - taken)
    later = ExpressionWrapper(Greatest(F("refilled_at"), constant(now)) + taken, InstantField())
    if not free.update(refilled_at=later):
        return None
    return request_buckets(tenant_id).values_list("refilled_at", flat=True).get()


@_moved.on(POSTGRESQL)
def _moved_in_one_statement(
    tenant_id: int, rate: RequestRate, now: datetime, requests: int
) -> datetime | None:
    parameters = {"tenant_id": tenant_id, **rate_parameters(rate, now, requests)}
    rows = tables.read(sql("request_rate"), parameters)
    return aware(rows[0][0]) if rows else None


def refused(tenant_id: int, quota: str, detail: str) -> None:
    """Send ``quota_refused`` for a request that exceeded a quota, outside of its transaction, which
    was rolled back.
    """
    quota_refused.send(TenantQuota, tenant_id=tenant_id, quota=quota, detail=detail)


# The system check of the quotas in the settings.


@register()
def check_quotas(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the values of QUOTAS."""
    if valid_settings() is None:
        return []
    try:
        quotas_of(conf.quotas())
    except InvalidOption as invalid:
        return [FINDINGS["E001"](reason=f"DURABLE_TASKS['QUOTAS']: {invalid}")]
    return []
