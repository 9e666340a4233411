"""Reads the columns of schedules that a tick needs, as plain values.

A model instance takes several times as long to create: it has twice as many columns, and each JSON
column is decoded, although most schedules have the same timetable, options and calendars.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from django.db.models import TextField
from django.db.models.functions import Cast

from django_durable_tasks.encryption import decrypted
from django_durable_tasks.engine.db import tables
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.rules.encryption import StorageLocation

_JSON = "_json"


class ScheduleRow(NamedTuple):
    """A stored schedule with the attributes of RecurringTask that a tick reads.

    The JSON columns are texts until they are read as attributes. What the attributes ``options``,
    ``timetable`` and ``calendars`` return is shared between schedules and must not be changed.
    """

    pk: uuid.UUID
    revision: int
    tenant_id: int
    name: str
    task: str
    queue: str
    priority: int | None
    time_zone: str
    dst_gap: str
    dst_overlap: str
    roll: str
    jitter: float
    jitter_percent: float
    start_time: datetime
    end_time: datetime | None
    max_runs: int | None
    expires_in: float | None
    catch_up_mode: str
    misfire_grace: float
    catchup_window: float | None
    max_catchup_runs: int
    catchup_order: str
    catchup_pace: float
    overlap: str
    overlap_key: str
    watermark_at: datetime
    paused_until: datetime | None
    status_reason: str
    status_by: str
    args_json: str
    kwargs_json: str
    options_json: str
    timetable_json: str
    calendars_json: str

    @property
    def args(self) -> Any:
        """The positional arguments; raises EncryptionKeyMissing or DecryptionFailed."""
        return self._decrypted("args", self.args_json)

    @property
    def kwargs(self) -> Any:
        """The keyword arguments; raises EncryptionKeyMissing or DecryptionFailed."""
        return self._decrypted("kwargs", self.kwargs_json)

    @property
    def options(self) -> Any:
        """The options of the tasks, as for ``.using()``."""
        return _decoded(self.options_json)

    @property
    def timetable(self) -> Any:
        """The parts of the timetable."""
        return _decoded(self.timetable_json)

    @property
    def calendars(self) -> Any:
        """The names of the calendars."""
        return _decoded(self.calendars_json)

    def _decrypted(self, column: str, text: str) -> Any:
        table = RecurringTask._meta.db_table
        place = StorageLocation(self.tenant_id, table, column, str(self.pk))
        return decrypted(json.loads(text), place)


AnySchedule: TypeAlias = RecurringTask | ScheduleRow
"""A schedule, either as a model instance, which may be unsaved, or as a tick reads it."""


@lru_cache(maxsize=4_096)
def _decoded(text: str) -> Any:
    return json.loads(text)


def read_rows(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, ScheduleRow]:
    """Return these schedules by id; at most one statement."""
    if not ids:
        return {}
    columns = [
        Cast(name.removesuffix(_JSON), TextField()) if name.endswith(_JSON) else name
        for name in ScheduleRow._fields
    ]
    rows = tables.with_ids(RecurringTask.objects.using(tables.database()), "id", ids)
    return {row[0]: ScheduleRow._make(row) for row in rows.values_list(*columns)}
