"""The secrets with which requests to a receiver are signed, for the receiver's own check.

Reading them has an audit entry, although nothing is changed: a reader can sign requests that the
receiver accepts.
"""

from __future__ import annotations

from dataclasses import dataclass

from django_durable_tasks.audit import acting, recorded
from django_durable_tasks.contrib.callbacks import http
from django_durable_tasks.targets.addresses import parsed_url
from django_durable_tasks.targets.http_request import endpoint_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningSecrets:
    """The secrets of an endpoint, the current one first; none if its requests are not signed.

    ``origin`` is None if the messages of a notification setting are no HTTP requests.
    """

    origin: str | None
    endpoint: str
    secrets: list[str]


def secrets_of_callbacks(
    tenant_id: int, url: str, endpoint: str | None, *, by: str, is_setting: bool = False
) -> SigningSecrets:
    """Return the secrets of the callbacks of a tenant to this URL; raises InvalidTarget, and
    InvalidOption for the name of a notification setting unless ``is_setting``.
    """
    target = parsed_url(url)
    name = endpoint_name(target, endpoint, is_setting=is_setting)
    found = http.signing_secrets(tenant_id, target, name)
    result = SigningSecrets(origin=target.origin, endpoint=name, secrets=found)
    record_read_secrets("tenant", tenant_id, tenant_id, result, by)
    return result


def record_read_secrets(
    kind: str, key: int, tenant_id: int, result: SigningSecrets, by: str
) -> None:
    """Add an audit entry, if secrets were returned."""
    if not result.secrets:
        return
    with acting(by=by), recorded("signing_secret.read") as entry:
        entry.subject(kind, key, tenant_id)
        entry.detail(origin=result.origin, endpoint=result.endpoint)
