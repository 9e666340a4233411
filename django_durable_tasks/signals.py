"""The public signals.

``tasks_transitioned`` is sent once per batch, right after the transition and in its transaction, if
it has one. Arguments: ``transition`` (a name in states.machine), ``status`` (the new status),
``task_ids`` (a list of UUIDs) and ``using`` (the database alias). ``leadership_changed`` is sent by
a scheduler that becomes leader or is no longer leader, with ``leading`` (bool) and ``term`` (int).
``dead_letters_grew`` is sent by the leader with ``number``, when more dead letters are open than
DEAD_LETTERS_MAX and than before. These are sent with ``send_robust``: errors of receivers are
logged.

The others are for optional apps, whose receivers must handle their errors. ``fires_recorded`` is
sent for missed and late fire times, in their transaction, with ``missed`` and ``late`` (ledger
entries) and ``schedules`` (by id). ``endpoint_changed`` is sent when the breaker of a receiver of
callbacks opens first (``change`` is ``opened``) or a receiver ends deliveries (``gone``), in the
transaction of the change, with ``endpoint`` (its key), ``reason`` and ``run``. ``quota_refused`` is
sent for a refused request, after its transaction was rolled back, with ``tenant_id``, ``quota`` and
``detail``.
"""

from __future__ import annotations

from django.dispatch import Signal

tasks_transitioned = Signal()
leadership_changed = Signal()
dead_letters_grew = Signal()
fires_recorded = Signal()
endpoint_changed = Signal()
quota_refused = Signal()
