"""The public signals.

``tasks_transitioned`` is sent once per batch, right after the transition and in its transaction, if
it has one. Arguments: ``transition`` (a name in states.machine), ``status`` (the new status),
``task_ids`` (a list of UUIDs) and ``using`` (the database alias). ``leadership_changed`` is sent by
a scheduler that becomes leader or is no longer leader, with ``leading`` (bool) and ``term`` (int).
``dead_letters_grew`` is sent by the leader with ``number``, when more dead letters are open than
DEAD_LETTERS_MAX and than before. These are sent with ``send_robust``:
errors of receivers are logged.

Optional apps record what follows in the transaction in which it occurs. Their receivers must handle
their errors. ``fires_recorded`` is sent for missed and late fire times, with ``missed`` and
``late`` (ledger entries) and ``schedules`` (by id); ``endpoint_changed`` when the breaker of a
receiver of callbacks opens first (``change`` is ``opened``) or a receiver ends deliveries
(``gone``), with ``endpoint`` (its key), ``reason`` and ``run``; ``quota_refused`` for a refused
request, with ``tenant_id``, ``quota`` and ``detail``.
"""

from __future__ import annotations

from django.dispatch import Signal

tasks_transitioned = Signal()
leadership_changed = Signal()
dead_letters_grew = Signal()
fires_recorded = Signal()
endpoint_changed = Signal()
quota_refused = Signal()
