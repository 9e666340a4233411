"""Where the messages of a setting are sent: ``delivery_type`` and ``delivery_config`` are checked
and masked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import InvalidOption, InvalidTarget
from django_durable_tasks.rules.targets.http_request import OF_SETTINGS
from django_durable_tasks.rules.targets.policy import AddressPolicy
from django_durable_tasks.rules.targets.urls import TargetUrl, parsed_url
from django_durable_tasks.rules.tasks.masking import MASK, masked_url

ADDRESSES_MAX = 20
_ADDRESS_LENGTH = 254
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,189}")


class DeliveryType(StrEnum):
    """How messages are sent."""

    EMAIL = "EMAIL"
    SLACK_WEBHOOK = "SLACK_WEBHOOK"
    HTTP_WEBHOOK = "HTTP_WEBHOOK"

    @property
    def is_http(self) -> bool:
        """Whether messages are HTTP requests."""
        return self != DeliveryType.EMAIL


def checked_config(
    delivery_type: str, config: object, *, policy: AddressPolicy, allowed: Sequence[str]
) -> dict[str, Any]:
    """Return the checked configuration; raises InvalidOption.

    ``allowed``: the patterns of e-mail addresses to which notifications may be sent.
    """
    if delivery_type not in set(DeliveryType):
        raise InvalidOption(
            f"delivery_type={delivery_type!r}: give one of {', '.join(DeliveryType)}."
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
    return {"url": _url(config["url"], policy)}


def _url(value: object, policy: AddressPolicy) -> str:
    if isinstance(value, str) and MASK in value:
        raise InvalidOption(
            "delivery_config has a masked URL: give the whole URL, or leave delivery_config out to"
            " keep the present one."
        )
    try:
        policy.check(parsed_url(value))
    except InvalidTarget as refused:
        raise InvalidOption(f"delivery_config has a URL that cannot be used: {refused}") from None
    return str(value)


def _addresses(value: object, allowed: Sequence[str]) -> list[str]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= ADDRESSES_MAX:
        raise InvalidOption(
            f"delivery_config has no list of 1 to {ADDRESSES_MAX} e-mail addresses in 'to'."
        )
    found: list[str] = []
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
        if address not in found:
            found.append(address)
    return found


def is_allowed(address: str, allowed: Sequence[str]) -> bool:
    """Return whether one of the patterns matches the address."""
    return any(fnmatchcase(address.lower(), pattern.lower()) for pattern in allowed)


def url_of(config: Mapping[str, Any]) -> TargetUrl:
    """Return the URL of a stored configuration; raises InvalidTarget."""
    return parsed_url(config.get("url"))


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


def merged_config(
    delivery_type: str, config: Any, known_type: str, known: Mapping[str, Any]
) -> Any:
    """Return the present configuration if the given one is its masked form, else the given one."""
    is_mask = config == shown_config(known_type, known)
    return dict(known) if is_mask and delivery_type == known_type else config
