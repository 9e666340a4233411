"""Notifications: the events, when messages about them are due, the values of a setting, its
destination, and the contents of messages.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, NotRequired, TypedDict

from django_durable_tasks.choices import FLAGS, DeliveryType, EventType, Status
from django_durable_tasks.exceptions import InvalidOption, InvalidSchedule, InvalidTarget, about
from django_durable_tasks.masking import MASK, masked_url, shortened
from django_durable_tasks.option_values import checked_key
from django_durable_tasks.schedules.timetables.zones import zone, zone_name
from django_durable_tasks.targets.addresses import AddressPolicy, parsed_url
from django_durable_tasks.targets.http_request import OF_SETTINGS
from django_durable_tasks.texts import did_you_mean

_FAILED = (EventType.DEAD, EventType.FAILED)
OF_TRANSITION: Mapping[tuple[str, Status], tuple[EventType, ...]] = {
    ("succeed", Status.SUCCESS): (EventType.SUCCEEDED,),
    ("force_complete", Status.SUCCESS): (EventType.SUCCEEDED,),
    ("retry", Status.PENDING): (EventType.RETRYING,),
    ("lose", Status.PENDING): (EventType.RETRYING,),
    ("exhaust", Status.FAILED): _FAILED,
    ("lose", Status.FAILED): _FAILED,
    ("fail", Status.FAILED): _FAILED,
}
"""The event types of a transition. A setting that selects several of them gets the first one only:
each failed task has a dead letter, and two messages about it would say the same.
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class OccurredEvent:
    """Something that happened. ``types``: the types of messages about it, the preferred first.
    ``schedule`` is the name of the recurring task. Empty names: it is not about one.
    """

    types: Sequence[EventType]
    tenant_id: int
    task_name: str = ""
    queue: str = ""
    schedule: str = ""
    shown_as: str = ""
    data: Mapping[str, object] = field(default_factory=dict)


def quiet_end(begin: time, end: time, time_zone: str, now: datetime) -> datetime | None:
    """Return when the quiet hours that contain ``now`` end; None if it is outside of them.

    In quiet hours nothing is sent. They are by the wall clock of a zone. ``begin`` may be later
    than ``end``: the hours then include midnight.
    """
    try:
        local = now.astimezone(zone(time_zone))
    except InvalidSchedule:
        # The installed tzdata does not have it any more. One setting must not stop the others.
        local = now.astimezone(UTC)
    clock = local.time()
    if begin <= end:
        if not begin <= clock < end:
            return None
        days = 0
    elif clock >= begin:
        days = 1
    elif clock < end:
        days = 0
    else:
        return None
    day = local.date() + timedelta(days=days)
    instant = datetime.combine(day, end, tzinfo=local.tzinfo)
    # When clocks are set back, the end may be repeated. Its second pass is after `now`.
    ends = (instant.astimezone(UTC), instant.replace(fold=1).astimezone(UTC))
    return next((candidate for candidate in ends if candidate > now), None)


def period_end(now: datetime, seconds: float) -> datetime:
    """Return the end of the period of this length that contains ``now``. Periods are counted from
    the epoch, so that every process computes the same ones.
    """
    length = timedelta(seconds=seconds)
    # Timedeltas are whole microseconds, so no rounding can return an end that is not after now.
    return _EPOCH + ((now - _EPOCH) // length + 1) * length


# The JSON that webhooks of notification settings receive, as types.
#
# The code that builds a message is checked against these types, and the section ``webhooks`` of
# the OpenAPI document is generated from them.


@dataclass(frozen=True, slots=True)
class Format:
    """The ``format`` of a string in JSON Schema."""

    name: str


class AlertKind(StrEnum):
    """What is wrong."""

    DEAD_LETTERS = "dead_letters"
    SCHEDULE_OVERDUE = "schedule_overdue"
    QUEUE_WITHOUT_WORKER = "queue_without_worker"
    CLOCK_SKEW = "clock_skew"


Id = Annotated[str, Format("uuid")]
Instant = Annotated[str, Format("date-time")]


class TaskEventData(TypedDict):
    """A task."""

    task_id: Id
    task_name: str
    queue: str
    attempt: Annotated[int, "How many attempts have started."]
    max_attempts: int
    schedule: NotRequired[Annotated[str, "The name of the schedule that created the task."]]


class FailedTaskData(TaskEventData):
    """A task that failed."""

    error: NotRequired[Annotated[str, "The start of the last error, with secrets masked."]]


class RetryingTaskData(FailedTaskData):
    """A task that failed and waits for its next attempt."""

    next_attempt_at: NotRequired[Instant]


class FireEventData(TypedDict):
    """Fire times of a schedule."""

    schedule_id: Id
    schedule: Annotated[str, "The name of the schedule."]
    task_name: str
    fire_time: Annotated[Instant, "The first fire time."]
    count: Annotated[int, "How many fire times the event is about."]
    reason: str
    last_fire_time: NotRequired[Annotated[Instant, "The last fire time, if there are several."]]
    task_id: NotRequired[Annotated[Id, "The task that was created."]]


class AlertData(TypedDict):
    """A condition of the whole installation."""

    alert: AlertKind
    subject: Annotated[str, "The id of a schedule, the name of a queue or host, or empty."]
    detail: Annotated[str, "A sentence about the condition."]


class EndpointEventData(TypedDict):
    """A receiver of HTTP callbacks."""

    endpoint: Annotated[str, "Its origin, followed by the value of `endpoint` if one is set."]
    task_name: str
    error: Annotated[str, "The last failure, or the answer that ended deliveries."]


class QuotaEventData(TypedDict):
    """A quota of the tenant."""

    quota: str
    detail: Annotated[str, "Why the request was refused."]


class NotificationTestData(TypedDict):
    """A test of a notification setting."""

    setting: Annotated[str, "The name of the setting."]
    sent_by: Annotated[str, "The user or the API key that asked for the test."]


class EventMessage(TypedDict):
    """A message about one event. ``type`` determines the members of ``data``."""

    type: EventType
    timestamp: Annotated[Instant, "When the event occurred."]
    data: Mapping[str, object]


class DigestCount(TypedDict):
    """How many events of one type and subject a digest is about."""

    type: EventType
    subject: str
    count: int


class DigestData(TypedDict):
    """The events of a period."""

    count: Annotated[int, "How many events the digest is about."]
    counts: Annotated[list[DigestCount], "The most frequent types and subjects."]
    events: Annotated[list[EventMessage], "The first events."]


DATA_OF: Mapping[EventType, type] = {
    EventType.SUCCEEDED: TaskEventData,
    EventType.FAILED: FailedTaskData,
    EventType.DEAD: FailedTaskData,
    EventType.RETRYING: RetryingTaskData,
    EventType.MISSED: FireEventData,
    EventType.LATE: FireEventData,
    EventType.ENDPOINT_OPENED: EndpointEventData,
    EventType.ENDPOINT_GONE: EndpointEventData,
    EventType.QUOTA_REACHED: QuotaEventData,
    EventType.ALERT_BEGAN: AlertData,
    EventType.ALERT_ENDED: AlertData,
    EventType.TEST: NotificationTestData,
    EventType.DIGEST: DigestData,
}
"""The type of ``data`` of each type of message."""

# Where the messages of a setting are sent: ``delivery_type`` and ``delivery_config`` are checked
# and masked here.


ADDRESSES_MAX = 20
_ADDRESS_LENGTH = 254
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,189}")


@about("delivery_config")
def checked_config(
    delivery_type: str, config: object, *, policy: AddressPolicy, allowed: Sequence[str]
) -> dict[str, Any]:
    """Return the checked configuration; raises InvalidOption.

    ``allowed``: the patterns of e-mail addresses to which notifications may be sent.
    """
    if delivery_type not in set(DeliveryType):
        raise InvalidOption.of(
            "delivery_type", delivery_type, f"give one of {', '.join(DeliveryType)}."
        )
    name = "to" if delivery_type == DeliveryType.EMAIL else "url"
    if not isinstance(config, Mapping) or set(config) != {name}:
        unknown = [str(key) for key in config if key != name] if isinstance(config, Mapping) else []
        hint = did_you_mean(unknown[0][:100], {name}) if unknown else ""
        raise InvalidOption(
            f"delivery_config is not valid for {delivery_type}: give an object with exactly"
            f" {name!r}. {hint}".strip()
        )
    if delivery_type == DeliveryType.EMAIL:
        return {"to": _addresses(config["to"], allowed)}
    url = config["url"]
    if isinstance(url, str) and MASK in url:
        raise InvalidOption(
            "delivery_config has a masked URL: give the whole URL, or leave delivery_config out to"
            " keep the present one."
        )
    try:
        policy.check(parsed_url(url))
    except InvalidTarget as refused:
        raise InvalidOption(f"delivery_config has a URL that cannot be used: {refused}") from None
    return {"url": str(url)}


def _addresses(value: object, allowed: Sequence[str]) -> list[str]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= ADDRESSES_MAX:
        raise InvalidOption(
            f"delivery_config has no list of 1 to {ADDRESSES_MAX} e-mail addresses in 'to'."
        )
    addresses: list[str] = []
    for address in value:
        if (
            not isinstance(address, str)
            or len(address) > _ADDRESS_LENGTH
            or not _ADDRESS.fullmatch(address)
        ):
            raise InvalidOption(f"delivery_config has {str(address)[:100]!r}: no e-mail address.")
        if not is_allowed(address, allowed):
            raise InvalidOption(
                f"delivery_config has {address!r}, which is not allowed"
                " (DURABLE_TASKS['NOTIFICATION_EMAIL_ALLOW'])."
            )
        if address not in addresses:
            addresses.append(address)
    return addresses


def is_allowed(address: str, allowed: Sequence[str]) -> bool:
    """Return whether one of the patterns matches the address."""
    return any(fnmatchcase(address.lower(), pattern.lower()) for pattern in allowed)


def endpoint_of_setting(setting_id: object) -> str:
    """Return the name of the receiver of a setting, of which its signing secret is derived."""
    return f"{OF_SETTINGS}{setting_id}"


def shown_url(delivery_type: str, url: str) -> str:
    """Return the URL without its secrets. The path of a Slack webhook is its password."""
    if delivery_type != DeliveryType.SLACK_WEBHOOK:
        return masked_url(url)
    try:
        return f"{parsed_url(url).origin}/{MASK}"
    except InvalidTarget:
        return MASK


def shown_config(delivery_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with a masked URL. Sent back, it means that nothing changes."""
    if "url" not in config:
        return dict(config)
    return {**config, "url": shown_url(delivery_type, str(config["url"]))}


# Checks the values of a notification setting, except its destination.


SHORTEST_DIGEST, LONGEST_DIGEST = 60.0, 86_400.0


def _flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption.of(option, value, "give True or False.")
    return value


def _pattern(option: str, value: object) -> str:
    if value in ("", None):
        return ""
    return checked_key(option, value)


def _digest(option: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidOption.of(option, value, "give seconds, or None for one message per event.")
    if not SHORTEST_DIGEST <= value <= LONGEST_DIGEST:
        raise InvalidOption(
            f"{option}={value:g}: give {SHORTEST_DIGEST:g} to {LONGEST_DIGEST:g} seconds, or None"
            " for one message per event.",
            option=option,
        )
    return float(value)


def _time(option: str, value: object) -> time | None:
    if value is None:
        return None
    if not isinstance(value, time) or value.tzinfo is not None:
        raise InvalidOption.of(option, value, "give a time of day without a zone.")
    return value


def _checked_zone(option: str, value: object) -> str:
    try:
        return zone_name(value)
    except InvalidSchedule as refused:
        raise InvalidOption(f"{option} is not valid: {refused}", option=option) from None


CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "name": checked_key,
    "user_id": _pattern,
    "enabled": _flag,
    **dict.fromkeys(FLAGS, _flag),
    "task_name": _pattern,
    "queue": _pattern,
    "schedule": _pattern,
    "digest": _digest,
    "quiet_from": _time,
    "quiet_until": _time,
    "time_zone": _checked_zone,
}


def checked_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked values of the given fields; raises InvalidOption."""
    for name in values:
        if name not in CHECKS:
            hint = did_you_mean(name, CHECKS)
            raise InvalidOption(f"{name}: a notification setting has no such field. {hint}".strip())
    return {name: CHECKS[name](name, value) for name, value in values.items()}


def check_together(values: Mapping[str, Any]) -> None:
    """Check all values of a setting; raises InvalidOption."""
    begin, end = values["quiet_from"], values["quiet_until"]
    if (begin is None) != (end is None):
        missing = "quiet_from" if begin is None else "quiet_until"
        raise InvalidOption(
            f"{missing}=None: give both ends of the quiet hours, or none.", option=missing
        )
    if begin is not None and begin == end:
        raise InvalidOption(
            "quiet_until is equal to quiet_from: nothing would ever be sent.", option="quiet_until"
        )


# The contents of notifications: JSON for webhooks, blocks for Slack, text for e-mail.
#
# A message contains ids and a short summary. Arguments and results are not sent.


SHOWN = 20
"""How many events of a digest a message describes. All of them are counted."""
SUBJECT_MAX, _LINE_MAX, SLACK_MAX = 150, 500, 2_800


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """One event as it was stored. ``data`` is masked already."""

    type: EventType
    created_at: datetime
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationContent:
    """The events of one message. ``events`` are the first SHOWN; ``counts`` counts all events by
    type and subject. ``is_digest``: the message is the summary of a period.
    """

    setting_name: str
    events: Sequence[EventFacts]
    total: int
    counts: Sequence[tuple[str, str, int]] = ()
    is_digest: bool = False

    @property
    def type(self) -> EventType:
        """The type of the message."""
        return EventType.DIGEST if self.is_digest else self.events[0].type


def http_body(content: NotificationContent) -> str:
    """Return the body of a webhook: ``type``, ``timestamp`` and ``data``, as Standard Webhooks
    recommends. It is the same text for each attempt.
    """
    if not content.is_digest:
        return _json(_message(content.events[0]))
    counts: list[DigestCount] = [
        {"type": EventType(kind), "subject": subject, "count": number}
        for kind, subject, number in content.counts
    ]
    data: DigestData = {
        "count": content.total,
        "counts": counts,
        "events": [_message(event) for event in content.events],
    }
    last = max(event.created_at for event in content.events)
    return _json(_message(EventFacts(type=EventType.DIGEST, created_at=last, data=data)))


def _message(event: EventFacts) -> EventMessage:
    return {"type": event.type, "timestamp": _at(event.created_at), "data": event.data}


def slack_body(content: NotificationContent) -> str:
    """Return the body of a Slack webhook. ``text`` is shown in notifications of the client."""
    subject = _escaped(subject_of(content))
    lines = [_escaped(line) for line in _lines(content)]
    text = shortened("\n".join([f"*{subject}*", *lines]), SLACK_MAX)
    block = {"type": "section", "text": {"type": "mrkdwn", "text": text}}
    return _json({"text": subject, "blocks": [block]})


def email_text(content: NotificationContent) -> str:
    """Return the text of an e-mail."""
    lines = "\n".join(_lines(content))
    return f"{lines}\n\n-- \nNotification setting: {_line(content.setting_name)}\n"


def subject_of(content: NotificationContent) -> str:
    """Return a summary in one line without control characters."""
    if not content.is_digest:
        return shortened(headline(content.events[0]), SUBJECT_MAX)
    noun = "event" if content.total == 1 else "events"
    return f"{content.total:,} {noun}"


def _lines(content: NotificationContent) -> list[str]:
    if not content.is_digest:
        return details(content.events[0])
    lines = [f"{number:,} x {kind} {_line(subject)}" for kind, subject, number in content.counts]
    lines += ["", *(f"{_at(event.created_at)} {headline(event)}" for event in content.events)]
    remaining = content.total - len(content.events)
    return [*lines, f"and {remaining:,} more"] if remaining > 0 else lines


def headline(event: EventFacts) -> str:
    """Return what happened, in one line."""
    return _line(_HEADLINES[event.type].format_map(defaultdict(lambda: None, event.data)))


def details(event: EventFacts) -> list[str]:
    """Return the facts of an event, one a line."""
    facts = [f"{name.replace('_', ' ')}: {_line(str(value))}" for name, value in event.data.items()]
    return [headline(event), "", *facts, f"time: {_at(event.created_at)}"]


_ATTEMPT = "(attempt {attempt} of {max_attempts})"
# What happened, with members of the event's data.
_HEADLINES: Mapping[EventType, str] = {
    EventType.SUCCEEDED: "Task {task_name} succeeded",
    EventType.FAILED: f"Task {{task_name}} failed {_ATTEMPT}",
    EventType.DEAD: f"Task {{task_name}} failed and has a dead letter {_ATTEMPT}",
    EventType.RETRYING: f"Task {{task_name}} failed and will be retried {_ATTEMPT}",
    EventType.MISSED: "Schedule {schedule} missed fire times: {count}",
    EventType.LATE: "Schedule {schedule} fired late",
    EventType.ENDPOINT_OPENED: "Endpoint {endpoint} fails: its callbacks wait",
    EventType.ENDPOINT_GONE: "Endpoint {endpoint} ended deliveries",
    EventType.QUOTA_REACHED: "A request exceeded the quota {quota}",
    EventType.ALERT_BEGAN: "Alert: {detail}",
    EventType.ALERT_ENDED: "Alert ended: {detail}",
    EventType.TEST: "This is a test of a notification setting",
}


def _line(text: str) -> str:
    """Return the text without line breaks and control characters."""
    clean = "".join(char if char.isprintable() else " " for char in text)
    return shortened(" ".join(clean.split()), _LINE_MAX)


def _escaped(text: str) -> str:
    """Escape what Slack interprets: mentions and links are written in angle brackets."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _at(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
