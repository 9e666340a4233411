"""The contents of notifications: JSON for webhooks, blocks for Slack, text for e-mail.

A message contains ids and a short summary. Arguments and results are not sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django_durable_tasks.rules.notifications.events import EventType
from django_durable_tasks.rules.notifications.message_types import (
    DigestCount,
    DigestData,
    EventMessage,
)
from django_durable_tasks.rules.tasks.masking import shortened

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
    found = [f"{number:,} x {kind} {_line(subject)}" for kind, subject, number in content.counts]
    found += ["", *(f"{_at(one.created_at)} {headline(one)}" for one in content.events)]
    left = content.total - len(content.events)
    return [*found, f"and {left:,} more"] if left > 0 else found


def headline(event: EventFacts) -> str:
    """Return what happened, in one line."""
    return _line(_HEADLINES[event.type](event.data))


def details(event: EventFacts) -> list[str]:
    """Return the facts of an event, one a line."""
    facts = [f"{name.replace('_', ' ')}: {_line(str(value))}" for name, value in event.data.items()]
    return [headline(event), "", *facts, f"time: {_at(event.created_at)}"]


def _task(what: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda data: f"Task {data.get('task_name')} {what}"


def _attempt(what: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda data: (
        f"Task {data.get('task_name')} {what} (attempt {data.get('attempt')} of"
        f" {data.get('max_attempts')})"
    )


_HEADLINES: Mapping[EventType, Callable[[Mapping[str, Any]], str]] = {
    EventType.SUCCEEDED: _task("succeeded"),
    EventType.FAILED: _attempt("failed"),
    EventType.DEAD: _attempt("failed and has a dead letter"),
    EventType.RETRYING: _attempt("failed and will be retried"),
    EventType.MISSED: lambda data: (
        f"Schedule {data.get('schedule')} missed {data.get('count')} fire times"
    ),
    EventType.LATE: lambda data: f"Schedule {data.get('schedule')} fired late",
    EventType.ENDPOINT_OPENED: lambda data: (
        f"Endpoint {data.get('endpoint')} fails: its callbacks wait"
    ),
    EventType.ENDPOINT_GONE: lambda data: f"Endpoint {data.get('endpoint')} ended deliveries",
    EventType.QUOTA_REACHED: lambda data: f"A request exceeded the quota {data.get('quota')}",
    EventType.ALERT_BEGAN: lambda data: f"Alert: {data.get('detail')}",
    EventType.ALERT_ENDED: lambda data: f"Alert ended: {data.get('detail')}",
    EventType.TEST: lambda _data: "This is a test of a notification setting",
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
