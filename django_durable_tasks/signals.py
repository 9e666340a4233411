"""The signals users may listen to.

``tasks_transitioned`` is sent once a batch, right after the move and in its transaction, if it has
one, with ``transition`` (a name of rules.states), ``status`` (where the rows stand now),
``task_ids`` (a list of UUIDs) and ``using`` (database alias). ``leadership_changed`` is sent by a
scheduler with ``leading`` (bool) and ``term`` (int). ``dead_letters_grew`` is sent by the leader
with ``number`` when more are open than DEAD_LETTERS_MAX and before. All are sent robustly: a
receiver that raises is logged and changes nothing.
"""

from __future__ import annotations

from django.dispatch import Signal

tasks_transitioned = Signal()
leadership_changed = Signal()
dead_letters_grew = Signal()
