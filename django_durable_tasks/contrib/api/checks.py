"""The system check of the quotas in the settings."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, register

from django_durable_tasks import conf
from django_durable_tasks.checks import FINDINGS, valid_settings
from django_durable_tasks.contrib.api.values import quotas_of
from django_durable_tasks.exceptions import InvalidOption


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
