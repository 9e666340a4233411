"""``/signing-secret`` and ``/notification-settings/{id}/signing-secret``: what the tenant's server
needs to check the signatures of our requests.
"""

from __future__ import annotations

from typing import ClassVar

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_durable_tasks.api.fields import Body, Text
from django_durable_tasks.api.objects import shown_by
from django_durable_tasks.api.problems import invalid_parameter
from django_durable_tasks.api.views.notification_settings import find_setting
from django_durable_tasks.api.writes import Answer, WritingEndpoint
from django_durable_tasks.exceptions import InvalidOption, InvalidTarget
from django_durable_tasks.operations import signing_secrets
from django_durable_tasks.operations.signing_secrets import SigningSecrets
from django_durable_tasks.rules.tenants.api_keys import ApiScope


class SigningSecretAnswer(Body):
    """The secrets of an endpoint."""

    origin = Text(allow_null=True, help_text="Null if the messages are e-mails.")
    endpoint = Text(help_text="The name of the endpoint; by default its origin.")
    secrets = serializers.ListField(
        child=Text(),
        help_text=(
            "`whsec_` and base64, as Standard Webhooks defines it, the current one first. During a"
            " rotation there are several, and one matching signature is enough. Empty if requests"
            " are not signed: ask the operator for a signing key."
        ),
    )


class SigningSecretEndpoint(WritingEndpoint):
    """The secrets with which callbacks of the tenant are signed. Each read has an audit entry."""

    reads = ("task_arguments",)
    scopes: ClassVar = {"GET": ApiScope.READ}
    parameters: ClassVar = {"GET": frozenset({"url", "endpoint"})}
    answers: ClassVar = {"GET": SigningSecretAnswer}

    def get(self, request: Request) -> Response:
        """Return the secrets with which a server checks `webhook-signature` of the callbacks to
        this URL. The key needs the scope `secrets` too.
        """
        self.require_scope(ApiScope.SECRETS)
        url = request.query_params.get("url")
        if url is None:
            raise invalid_parameter("url", "is required: the URL of the callbacks", "required")
        caller = self.caller

        def act() -> Answer:
            found = signing_secrets.of_callbacks(
                caller.tenant.pk, url, request.query_params.get("endpoint"), by=caller.name
            )
            return _answer(found)

        try:
            return self.write(request, act)
        except InvalidTarget as refused:
            raise invalid_parameter("url", str(refused)) from None
        except InvalidOption as refused:
            raise invalid_parameter("endpoint", str(refused)) from None


class SettingSecretEndpoint(WritingEndpoint):
    """The secrets with which messages of a notification setting are signed. Each read has an audit
    entry.
    """

    reads = ("notificationsetting", "task_arguments")
    scopes: ClassVar = {"GET": ApiScope.READ}
    answers: ClassVar = {"GET": SigningSecretAnswer}

    def get(self, request: Request, notification_setting_id: int) -> Response:
        """Return the secrets with which a server checks `webhook-signature` of the messages of this
        setting. The key needs the scope `secrets` too.
        """
        self.require_scope(ApiScope.SECRETS)
        caller = self.caller

        def act() -> Answer:
            row = find_setting(caller, notification_setting_id)
            return _answer(signing_secrets.of_setting(row, by=caller.name))

        return self.write(request, act)


def _answer(found: SigningSecrets) -> Answer:
    return Answer(200, shown_by(SigningSecretAnswer, found))
