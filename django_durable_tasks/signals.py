"""The public signals.

``tasks_transitioned`` is sent once per batch, right after the transition and in its transaction, if
it has one. Arguments: ``transition`` (a name in states.machine), ``status`` (the new status),
``task_ids`` (a list of UUIDs) and ``using`` (the database alias). ``leadership_changed`` is sent by
a scheduler that becomes leader or is no longer leader, with ``leading`` (bool) and ``term`` (int).
``dead_letters_grew`` is sent by the leader with ``number``, when more dead letters are open than
DEAD_LETTERS_MAX and than before. All are sent with ``send_robust``: errors of receivers are logged.
"""

from __future__ import annotations

from django.dispatch import Signal

tasks_transitioned = Signal()
leadership_changed = Signal()
dead_letters_grew = Signal()
