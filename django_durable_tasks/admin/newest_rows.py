"""Lists of tasks, dead letters and attempts: a condition without an index is applied to the newest
rows only, and the page shows a message.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from django_durable_tasks.admin import filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, ScreenList

LOOKED_THROUGH = 100_000
"""How many of the newest rows are read for a condition without an index. An index for each filter
would cost every ending a write; without a bound a rare value would read the whole table.
"""


class NewestRowsList(ScreenList):
    """A list that applies filters without an index to the newest rows only."""

    def get_queryset(self, request: HttpRequest, *rest: Any, **more: Any) -> QuerySet[Any]:
        found = super().get_queryset(request, *rest, **more)
        admin: Any = self.model_admin
        return admin.newest(request, found) if admin.filters_without_index(request) else found


class NewestRowsAdmin(ReadOnlyAdmin):
    """Rows that are searched by their tasks, in a table that may have many millions of rows."""

    without_index: ClassVar[frozenset[str]] = frozenset()
    """The parameters of filters that no index serves."""
    with_index: ClassVar[frozenset[str]] = frozenset({"task__id__exact", "fingerprint__exact"})
    """The parameters of filters that leave few rows, by an index."""
    path_to_task: ClassVar[str] = "task__"
    advice: ClassVar[Any] = _lazy("Find older ones by the id or a key of their task.")
    """How to find older rows; part of the message."""

    def filters_without_index(self, request: HttpRequest) -> bool:
        """Return whether no index serves the filters of the request."""
        return self._has(request, self.without_index) and not self._has(request, self.with_index)

    def examined(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of which the newest are searched."""
        rows: QuerySet[Any] = self.model._default_manager.all()
        return rows

    def newest(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return those of the rows that are among the newest LOOKED_THROUGH of the table, and add a
        message if the table has more.
        """
        ids = self.examined(request).using(rows.db).order_by("-pk").values_list("pk")
        oldest = ids[LOOKED_THROUGH - 1 : LOOKED_THROUGH + 1]
        found = [row[0] for row in oldest]
        if len(found) < 2:
            return rows
        text = _(
            "These filters have no index: only the newest %(number)s rows were searched. %(advice)s"
        )
        if request.method == "GET":  # an action reads the same rows twice
            values = {"number": f"{LOOKED_THROUGH:,}", "advice": self.advice}
            self.message_user(request, text % values, messages.INFO)
        return rows.filter(pk__gte=found[0])

    def get_changelist(self, request: HttpRequest, **more: Any) -> type[ChangeList]:
        return NewestRowsList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        condition = filters.search_by_key(search_term, self.path_to_task)
        if condition is not None:
            return queryset.filter(condition), False
        names = filters.names_like(search_term)
        found = queryset.filter(**{f"{self.path_to_task}name__in": names})
        # The list itself applies the bound of a filter without an index.
        bounded = names and self.searches_all(request) and not self.filters_without_index(request)
        return (self.newest(request, found) if bounded else found), False

    def _has(self, request: HttpRequest, names: frozenset[str]) -> bool:
        return any(request.GET.get(name) for name in names)

    def searches_all(self, request: HttpRequest) -> bool:
        """Return whether the list can contain every row of the table."""
        return True
