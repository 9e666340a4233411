"""The requests of HTTP callbacks, and the secrets that sign them, in the HTTP API."""

from __future__ import annotations

import uuid

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.contrib.api import fields
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.api.idempotent_requests import StoredAnswer
from django_durable_tasks.contrib.api.problems import invalid_parameter
from django_durable_tasks.contrib.api.serializers import Answer, list_of
from django_durable_tasks.contrib.api.tasks import OneTaskMixin
from django_durable_tasks.contrib.api.views import ApiViewSet, endpoint
from django_durable_tasks.contrib.callbacks.http import secrets_of_callbacks
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.exceptions import InvalidOption, InvalidTarget


class DeliveryAnswer(Answer):
    """A request and its answer. Secrets are masked, also for keys with the scope ``secrets``."""

    reason = fields.ErrorText(allow_blank=True)

    class Meta:
        model = DeliveryAttempt
        hidden = (
            *("task", "run_id", "endpoint"),
            *("dns_seconds", "connect_seconds", "tls_seconds", "first_byte_seconds"),
        )


class DeliveryViewSet(OneTaskMixin):
    """The requests of a task."""

    @endpoint(
        id="listTaskDeliveries",
        reads=("task", "durable_tasks_callbacks.deliveryattempt"),
        answer=list_of(DeliveryAnswer),
        is_list=True,
    )
    def list(self, request: Request, task_id: uuid.UUID) -> Response:
        """Return the requests of an HTTP callback or of a notification, with their answers."""
        return self.page_of_task(DeliveryAnswer)


# What the tenant's server needs to check the signatures of our requests.


class SigningSecretAnswer(Answer):
    """The secrets of an endpoint."""

    origin = fields.Text(allow_null=True, help_text="Null if the messages are e-mails.")
    endpoint = fields.Text(help_text="The name of the endpoint; by default its origin.")
    secrets = serializers.ListField(
        child=fields.Text(),
        help_text=(
            "`whsec_` and base64, as Standard Webhooks defines it, the current one first. During a"
            " rotation there are several, and one matching signature is enough. Empty if requests"
            " are not signed: ask the operator for a signing key."
        ),
    )


_OF_CALLBACKS = {
    "url": fields.Text(
        required=True,
        allow_blank=True,
        help_text="the URL of the callbacks, of which only the origin has an effect",
    ),
    "endpoint": fields.Text(
        required=False,
        allow_blank=True,
        help_text="The `endpoint` of the callbacks, if they have one.",
    ),
}


class SigningSecretViewSet(ApiViewSet):
    """The secrets with which callbacks of the tenant are signed. Each read has an audit entry."""

    singular = "SigningSecret"
    reads = ("task_arguments",)

    @endpoint(answer=SigningSecretAnswer, filters=_OF_CALLBACKS)
    def list(self, request: Request) -> Response:
        """Return the secrets with which a server checks `webhook-signature` of the callbacks to
        this URL. The key needs the scope `secrets` too.
        """
        self.require_scope(ApiScope.SECRETS)
        parameters, caller = self.query(), self.caller

        def act() -> StoredAnswer:
            secrets = secrets_of_callbacks(
                caller.tenant.pk, parameters["url"], parameters.get("endpoint"), by=caller.name
            )
            return StoredAnswer(200, SigningSecretAnswer.shown(secrets))

        try:
            return self.write(act)
        except InvalidTarget as refused:
            raise invalid_parameter("url", str(refused)) from None
        except InvalidOption as refused:
            raise invalid_parameter("endpoint", str(refused)) from None


RESOURCES = (
    ("tasks/<uuid:task_id>/deliveries", "task-deliveries", DeliveryViewSet),
    ("signing-secret", "signing-secret", SigningSecretViewSet),
)
