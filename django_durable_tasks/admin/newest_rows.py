"""Lists of dead letters and attempts: a condition without an index is applied to the newest rows
only, and the page shows a message.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_durable_tasks.admin import filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, ScreenList

LOOKED_THROUGH = 100_000
"""How many of the newest rows are read for a condition without an index. An index for each filter
would cost every ending a write; without a bound a rare value would read the whole table.
"""
_WITH_INDEX = frozenset({"task__id__exact", "fingerprint__exact"})


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

    def filters_without_index(self, request: HttpRequest) -> bool:
        """Return whether no index serves the filters of the request."""
        return self._has(request, self.without_index) and not self._has(request, _WITH_INDEX)

    def newest(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return those of the rows that are among the newest LOOKED_THROUGH of the table, and add a
        message if the table has more.
        """
        ids = self.model._default_manager.using(rows.db).order_by("-pk").values_list("pk")
        oldest = ids[LOOKED_THROUGH - 1 : LOOKED_THROUGH + 1]
        found = [row[0] for row in oldest]
        if len(found) < 2:
            return rows
        text = _(
            "These filters have no index: only the newest %(number)s rows were searched. Find older"
            " ones by the id or a key of their task."
        )
        if request.method == "GET":  # an action reads the same rows twice
            self.message_user(request, text % {"number": f"{LOOKED_THROUGH:,}"}, messages.INFO)
        return rows.filter(pk__gte=found[0])

    def get_changelist(self, request: HttpRequest, **more: Any) -> type[ChangeList]:
        return NewestRowsList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        condition = filters.search_by_key(search_term, "task__")
        if condition is not None:
            return queryset.filter(condition), False
        names = filters.names_like(search_term)
        found = queryset.filter(task__name__in=names)
        # The list itself applies the bound of a filter without an index.
        bounded = names and self.searches_all(request) and not self.filters_without_index(request)
        return (self.newest(request, found) if bounded else found), False

    def _has(self, request: HttpRequest, names: frozenset[str]) -> bool:
        return any(request.GET.get(name) for name in names)

    def searches_all(self, request: HttpRequest) -> bool:
        """Return whether the list can contain every row of the table."""
        return True
