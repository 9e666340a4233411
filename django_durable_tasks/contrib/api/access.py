"""Who may act for a tenant: API keys, and staff users that are limited to tenants."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from django.contrib.auth import get_user_model
from django.db.models import Q
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.audit import NAMED, current_actor, recorded
from django_durable_tasks.choices import KeyMode
from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.contrib.api.models import ApiKey, ApiKeyQuerySet, StaffTenant, TenantQuota
from django_durable_tasks.contrib.api.quotas import NUMBERS, REQUESTS, RateDecision, RequestRate
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused
from django_durable_tasks.models import Tenant
from django_durable_tasks.operations import Argument, Target, operation
from django_durable_tasks.option_values import checked_key
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import ReceivedTime, aware, estimated_now
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb

# The format of API keys: ``ddt_<live|test>_<id>_<secret><checksum>``.
#
# The prefix lets secret scanners find a key. The checksum refuses a mistyped key without a query.
# The database stores the id and the SHA-256 of the whole key, which is enough for 256 random bits.


ID_LENGTH, SECRET_LENGTH, _CHECKSUM_LENGTH = 8, 43, 6
ID_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEY_FORM = re.compile(
    rf"(?P<body>ddt_(?:live|test)_(?P<id>[0-9a-z]{{{ID_LENGTH}}})_[A-Za-z0-9_-]{{{SECRET_LENGTH}}})"
    rf"(?P<checksum>[0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)
LIVE_KEYS_MAX = 2
"""How many keys of one name and tenant may be valid at the same time: the old and the new one of a
rotation.
"""


class ApiScope(StrEnum):
    """What an API key may do."""

    READ = "read"
    CREATE = "create"
    OPERATE = "operate"
    FORCE = "force"
    SCHEDULES = "schedules"
    QUEUES = "queues"
    METRICS = "metrics"
    NOTIFICATIONS = "notifications"
    SECRETS = "secrets"


SCOPE_HELP = {
    ApiScope.READ: "read tasks, schedules and their history",
    ApiScope.CREATE: "create tasks and workflows",
    ApiScope.OPERATE: "edit, cancel, retry, replay and reschedule tasks",
    ApiScope.FORCE: "force-complete and force-run tasks",
    ApiScope.SCHEDULES: "change recurring tasks and calendars",
    ApiScope.QUEUES: "read and pause queues and read the state of nodes, which all tenants share",
    ApiScope.METRICS: "read the metrics, which all tenants share",
    ApiScope.NOTIFICATIONS: "change and test notification settings",
    ApiScope.SECRETS: "read arguments and results unmasked, and signing secrets",
}


def composed(mode: KeyMode, identifier: str, secret: str) -> str:
    """Return the key of these parts, with its checksum."""
    body = f"ddt_{mode}_{identifier}_{secret}"
    return body + _checksum(body)


def presented(text: str) -> str | None:
    """Return the id of a key; None if it is not well formed or its checksum is wrong."""
    match = _KEY_FORM.fullmatch(text)
    if match is None or _checksum(match["body"]) != match["checksum"]:
        return None
    return match["id"]


def digest_of(key: str) -> str:
    """Return the SHA-256 of a key as hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _place in range(_CHECKSUM_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


# Creates, revokes and verifies API keys.


NAMED["API key"] = (ApiKey, "name")
_USE_RECORDED_EVERY = timedelta(minutes=1)
_NAME_MAX = 100
_KEY = (
    *("id", "tenant_id", "name", "identifier", "mode"),
    *("digest", "scopes", "expires_at", "revoked_at", "last_used_at"),
)
_TENANT = ("id", "slug", "name")
_QUOTA = ("tenant_id", *NUMBERS, REQUESTS)
"""The columns of the statements ``api_key`` and ``counted_api_key``, for each of their tables."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. ``text`` is the key itself, which cannot be read again."""

    row: ApiKey
    text: str

    def __str__(self) -> str:
        return self.row.prefix


def api_keys() -> ApiKeyQuerySet:
    """Return a queryset of all keys, without the guard against writes."""
    queryset: ApiKeyQuerySet = ApiKey.objects.using(tables.database())
    return queryset.unguarded()


_KEYS_BY_OPERATORS = "a key must not create keys with more scopes"


@operation(
    Target.TENANT,
    name="create_api_key",
    title=_("Create an API key"),
    help=_(
        "Creates a key for the HTTP API. To rotate a key, create a second one of the same name and"
        " revoke the first one when all clients use the second."
    ),
    permission="durable_tasks_api.add_apikey",
    not_in_api=_KEYS_BY_OPERATORS,
    confirm=False,
    counted="created",
    done=_("Created the API key %(value)s. It is shown only once."),
)
def create_key(
    tenant: Tenant,
    name: Annotated[str, Argument(_("Name"), _("What uses the key."), metavar="NAME")] = "",
    scopes: Annotated[
        str | Collection[str],
        Argument(
            _("Scopes"),
            _("What the key may do, separated by commas: %s.") % ", ".join(ApiScope),
            metavar="SCOPES",
        ),
    ] = "read,create",
    *,
    expires_at: Annotated[
        datetime | None,
        Argument(_("Expires at"), _("When the key becomes invalid. If empty, it does not expire.")),
    ] = None,
    mode: Annotated[
        str,
        Argument(
            _("Mode"),
            _("Part of the prefix, to distinguish the keys of a test system."),
            choices=tuple((mode.value, mode.value) for mode in KeyMode),
        ),
    ] = KeyMode.LIVE.value,
    now: datetime | None = None,
) -> IssuedKey:
    """Create a key. Raises InvalidOption, or TransitionRefused if the name has two live keys.

    The tenant's row is locked, so that two calls at the same time do not create a third key.
    """
    now, actor = now or estimated_now(), current_actor()
    if isinstance(scopes, str):
        scopes = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    unknown = sorted(set(scopes) - set(ApiScope))
    if unknown or not scopes:
        raise InvalidOption(
            f"scopes={', '.join(unknown) or '(none)'}: give one or more of {', '.join(ApiScope)}.",
            option="scopes",
        )
    if len(checked_key("name", name)) > _NAME_MAX:
        raise InvalidOption.of("name", name, f"give at most {_NAME_MAX} characters.")
    if mode not in set(KeyMode):
        raise InvalidOption.of("mode", mode, f"give one of {', '.join(KeyMode)}.")
    if expires_at is not None and expires_at <= now:
        raise InvalidOption(
            f"expires_at={expires_at.isoformat()} is in the past.", option="expires_at"
        )
    identifier = "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))
    text = composed(KeyMode(mode), identifier, secrets.token_urlsafe(32))
    with recorded("tenant.create_api_key") as entry:
        rows = Tenant.objects.using(tables.database())
        tables.locked_for_change(rows).get(pk=tenant.pk)
        existing = api_keys().for_tenant(tenant).filter(name=name).live(now)
        if existing.count() >= LIVE_KEYS_MAX:
            raise TransitionRefused(
                f"name={name!r} has {LIVE_KEYS_MAX} live keys: revoke one of them first."
            )
        row = api_keys().create(
            tenant_id=tenant.pk,
            name=name,
            identifier=identifier,
            mode=mode,
            digest=digest_of(text),
            scopes=[scope.value for scope in ApiScope if scope in set(scopes)],
            expires_at=expires_at,
            created_by=actor.by[:200],
            reason=actor.reason[:500],
        )
        # None of these columns is secret.
        shown = {name: getattr(row, name) for name in ("name", "prefix", "scopes", "expires_at")}
        entry.changed("API key", row.pk, {}, shown, tenant.pk)
    return IssuedKey(row, text)


@operation(
    Target.API_KEYS,
    name="revoke",
    title=_("Revoke API keys"),
    title_of_one=_("Revoke API key"),
    help=_("Requests with these keys are refused from now on, or from a later time."),
    permission="durable_tasks_api.revoke_apikey",
    not_in_api=_KEYS_BY_OPERATORS,
    counted="revoked",
    done=ngettext_lazy("Revoked %(number)d API key.", "Revoked %(number)d API keys.", "number"),
)
def revoke_key(
    keys: ApiKeyQuerySet,
    *,
    at: Annotated[
        datetime | None, Argument(_("At"), _("When the keys become invalid. If empty, now."))
    ] = None,
) -> int:
    """Revoke the live keys of a queryset now, or at a later time; return how many."""
    now, actor = estimated_now(), current_actor()
    end = max(at, now) if at is not None else now
    with recorded("api_keys.revoke") as entry:
        live_keys = tables.locked_for_change(keys.using(tables.database()).unguarded().live(now))
        rows = list(live_keys.order_by("pk").values_list("pk", "tenant_id"))
        entry.several("API key", rows, {}, {"revoked_at": end})
        revoked = api_keys().filter(pk__in=[pk for pk, _tenant in rows])
        return revoked.update(revoked_at=end, revoked_by=actor.by[:200], reason=actor.reason[:500])


class VerifiedKey(NamedTuple):
    """A live key with its tenant. ``clock`` is the time of the database, which PostgreSQL returns.
    ``decision`` admits the request if it was counted with the read of the key.
    """

    row: ApiKey
    clock: ReceivedTime | None = None
    decision: RateDecision | None = None


def verified_key(text: str, now: datetime, rate: RequestRate | None = None) -> VerifiedKey | None:
    """Return the live key of this text, or None. A mistyped key needs no query.

    With ``rate``, the rate of tenants without one of their own, PostgreSQL counts the request in
    the statement that reads the key. A request that it did not count is to be counted by
    ``quotas.admit_requests``.
    """
    identifier = presented(text)
    if identifier is None:
        return None
    digest = digest_of(text)
    verified = _with_tenant(identifier, digest, now, rate)
    if verified is None or not hmac.compare_digest(digest, verified.row.digest):
        return None
    return verified if verified.row.is_live(now) else None


@verb
def _with_tenant(
    identifier: str, digest: str, now: datetime, rate: RequestRate | None
) -> VerifiedKey | None:
    """Return the key with its tenant and the tenant's quota, in one statement."""
    keys = api_keys().select_related("tenant__quota").filter(identifier=identifier)
    row = keys.first()
    return None if row is None else VerifiedKey(row)


@_with_tenant.on(POSTGRESQL)
def _with_tenant_and_counted(
    identifier: str, digest: str, now: datetime, rate: RequestRate | None
) -> VerifiedKey | None:
    """Each request reads the key, and building the statement by the ORM takes longer than executing
    it.
    """
    if rate is None:
        rows = tables.read(sql("api_key"), {"identifier": identifier})
        if not rows:
            return None
        return VerifiedKey(_key_from(rows[0]), ReceivedTime(rows[0][-1], time.monotonic()))
    counted = {**quotas.rate_parameters(rate, now), "digest": digest}
    rows = tables.read(sql("counted_api_key"), {"identifier": identifier, **counted})
    if not rows:
        return None
    *columns, read_at, full_at = rows[0]
    decision = None if full_at is None else quotas.admitted(rate, aware(full_at), now)
    return VerifiedKey(_key_from(columns), ReceivedTime(read_at, time.monotonic()), decision)


def _key_from(values: Sequence[Any]) -> ApiKey:
    """Return the key from the columns of the statements, in their order."""
    alias, key_end, tenant_end = tables.database(), len(_KEY), len(_KEY) + len(_TENANT)
    columns = list(values[:key_end])
    scopes = _KEY.index("scopes")
    columns[scopes] = json.loads(columns[scopes])
    row = ApiKey.from_db(alias, _KEY, columns)
    row.tenant = Tenant.from_db(alias, _TENANT, values[key_end:tenant_end])
    quota = values[tenant_end : tenant_end + len(_QUOTA)]
    row.tenant._state.fields_cache["quota"] = (
        None if quota[0] is None else TenantQuota.from_db(alias, _QUOTA, quota)
    )
    return row


def record_key_use(row: ApiKey, now: datetime) -> None:
    """Set ``last_used_at``, at most once a minute. Never waits for a locked row.

    A transaction that has locked the key would otherwise stop every request of its program.
    """
    before = now - _USE_RECORDED_EVERY
    if row.last_used_at is None or row.last_used_at < before:
        old = Q(last_used_at__isnull=True) | Q(last_used_at__lt=before)
        with tables.atomic():
            free = api_keys().filter(old, pk=row.pk).select_for_update(skip_locked=True)
            if free.values_list("pk", flat=True).first() is not None:
                api_keys().filter(pk=row.pk).update(last_used_at=now)


# A superuser and a user who was never limited see all tenants. A user whose last assignment was
# removed sees none. Only ``all_tenants`` of ``unassign_staff`` ends the limit.


def tenants_of(user: Any) -> frozenset[int] | None:
    """Return the ids of the tenants that this user may see, possibly none of them; None if these
    are all.
    """
    if user.is_superuser:
        return None
    rows = tables.unguarded(StaffTenant).filter(user_key=str(user.pk))
    tenant_ids = set(rows.values_list("tenant_id", flat=True))
    return frozenset(tenant_ids - {None}) if tenant_ids else None


class UnlimitedUser(NamedTuple):
    """A staff user who sees all tenants, and why."""

    username: str
    reason: str


def unlimited_users(number: int) -> list[UnlimitedUser]:
    """Return the first active staff users who see all tenants, by name, at most ``number``."""
    users = get_user_model()
    columns = {field.name for field in users._meta.get_fields()}
    rows = users._default_manager.order_by(users.USERNAME_FIELD)
    for name in {"is_staff", "is_active"} & columns:
        rows = rows.filter(**{name: True})
    limited = set(tables.unguarded(StaffTenant).values_list("user_key", flat=True))
    unlimited = list[UnlimitedUser]()
    for user in rows.iterator():
        assigned, reason = str(user.pk) in limited, "was never limited to tenants"
        if user.is_superuser:
            reason = "superuser, assignments have no effect" if assigned else "superuser"
        if user.is_staff and user.is_active and (user.is_superuser or not assigned):
            unlimited.append(UnlimitedUser(user.get_username(), reason))
        if len(unlimited) == number:
            break
    return unlimited


_BY_OPERATORS = "an operator decides which tenants a user sees"
Username = Annotated[
    str, Argument(_("User name"), _("A staff user who is no superuser."), metavar="USER")
]


@operation(
    Target.TENANT,
    title=_("Assign a staff user"),
    help=_(
        "The user sees and changes only the tenants assigned to them, in the admin and in the"
        " HTTP API. A user who was never limited sees all tenants."
    ),
    permission="durable_tasks_api.add_stafftenant",
    not_in_api=_BY_OPERATORS,
    confirm=False,
    counted="assigned",
    done=_("%(username)s is limited to %(subject)s and the other tenants assigned to this user."),
)
def assign_staff(tenant: Tenant, username: Username) -> int:
    """Limit a staff user to this tenant and to those assigned before; return 0 if nothing changed.

    Raises InvalidOption if there is no such staff user, or if the user is a superuser, who cannot
    be limited.
    """
    user = _user(username)
    if user is None or not user.is_staff:
        raise InvalidOption.of("username", username, "there is no staff user with this name.")
    if user.is_superuser:
        raise InvalidOption(
            f"username={username!r} is a superuser, who sees all tenants.", option="username"
        )
    with recorded("tenant.assign_staff") as entry:
        rows = Tenant.objects.using(tables.database())
        tables.locked_for_change(rows).get(pk=tenant.pk)
        of_user = tables.unguarded(StaffTenant).filter(user_key=str(user.pk))
        if of_user.filter(tenant_id=tenant.pk).exists():
            return 0
        tables.unguarded(StaffTenant).create(
            user_key=str(user.pk),
            username=username[:200],
            tenant_id=tenant.pk,
            assigned_by=current_actor().by[:200],
            reason=current_actor().reason[:500],
        )
        # After the insert, so that the user is limited at every moment.
        of_user.filter(tenant__isnull=True).delete()
        entry.changed("tenant", tenant.pk, {}, {"staff": username}, tenant.pk)
    return 1


def _user(username: str) -> Any:
    users = get_user_model()
    return users._default_manager.filter(**{users.USERNAME_FIELD: username}).first()


def _unassigned(
    _done: int, subject: Tenant, username: str, all_tenants: bool = False, **_told: Any
) -> str:
    if all_tenants:
        return gettext("%(user)s sees all tenants.") % {"user": username}
    text = gettext("%(user)s is not assigned to %(tenant)s and stays limited.")
    return text % {"user": username, "tenant": subject.slug}


@operation(
    Target.TENANT,
    title=_("Remove a staff user"),
    help=_(
        "The user stays limited to the other assigned tenants. Without any of them the user sees"
        " no tenant."
    ),
    permission="durable_tasks_api.delete_stafftenant",
    not_in_api=_BY_OPERATORS,
    confirm=False,
    counted="removed",
    done=_unassigned,
)
def unassign_staff(
    tenant: Tenant,
    username: Username,
    *,
    all_tenants: Annotated[
        bool,
        Argument(
            _("Removed users see all tenants"),
            _("Ends the limit: the user sees all tenants, whatever was assigned."),
        ),
    ] = False,
) -> int:
    """Remove the assignment of a user to this tenant, or with ``all_tenants`` the limit itself;
    return 0 if there was none.

    The user stays limited: the row remains without its tenant. The name may be the present one of
    the user or the one at the time of the assignment.
    """
    user = _user(username)
    before: dict[str, Any] = {"staff": username}
    after: dict[str, str] = {}
    named = Q(username=username) if user is None else Q(user_key=str(user.pk))
    rows = tables.unguarded(StaffTenant).filter(named)
    # The audit entry is about ``tenant``, also if the user is removed from all tenants.
    with recorded("tenant.unassign_staff") as entry:
        if all_tenants:
            assigned = rows.exclude(tenant=None).order_by("pk")
            before["tenants"] = list(assigned.values_list("tenant__slug", flat=True))
            after["tenants"] = "all"
            done, _each = rows.delete()
        else:
            done = rows.filter(tenant_id=tenant.pk).update(tenant=None)
        if done:
            entry.changed("tenant", tenant.pk, before, after, tenant.pk)
    return done
