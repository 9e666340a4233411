"""A flush restores the rows that migrations insert. Without the row of the lease no scheduler could
become leader.
"""

from __future__ import annotations

import uuid

import pytest
from django.core.management import call_command

from django_durable_tasks.cluster import nodes
from django_durable_tasks.models import DEFAULT_TENANT_ID, Tenant


@pytest.mark.django_db(transaction=True)
def test_after_a_flush_a_scheduler_can_lead_and_tenants_can_be_created() -> None:
    call_command("flush", interactive=False, verbosity=0)
    assert nodes.take_lease(uuid.uuid4(), 5) == 1
    assert Tenant.objects.get().pk == DEFAULT_TENANT_ID
    assert Tenant.objects.create(slug="acme").pk != DEFAULT_TENANT_ID
