"""Base classes of the admin: rows are read-only, and large tables stay fast."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.functional import cached_property
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import filters, staff_tenants
from django_durable_tasks.audit import acting
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.models import Tenant
from django_durable_tasks.operations.operation import Operation

COUNTED_AT_MOST = 10_000
_NUL = "\x00"

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _TabularInline = admin.TabularInline[Any, Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin = admin.ModelAdmin
    _TabularInline = admin.TabularInline
    _Paginator = Paginator


class BoundedPaginator(_Paginator):
    """Counts at most COUNTED_AT_MOST rows, because an exact count scans the table."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, at most COUNTED_AT_MOST."""
        rows: Any = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by().values("pk")[:COUNTED_AT_MOST].count()
        return len(rows)


class ScreenList(ChangeList):
    """A list that finds nothing for a value with a NUL character, which PostgreSQL refuses with an
    error.
    """

    def get_queryset(self, request: HttpRequest, *rest: Any, **more: Any) -> QuerySet[Any]:
        found: QuerySet[Any] = super().get_queryset(request, *rest, **more)
        given = (value for values in request.GET.lists() for value in values[1])
        return found.none() if any(_NUL in value for value in given) else found


class _Unwritable:
    """No permission to add, change or delete."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyInline(_Unwritable, _TabularInline):
    """Read-only rows of another table, as an inline."""

    extra = 0
    max_num = 0
    can_delete = False


def _acting_as_user(view: Any) -> Any:
    @functools.wraps(view)
    def page(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        name = request.user.get_username() if request.method == "POST" else ""
        with acting(AuditSource.ADMIN, name, request.META.get("REMOTE_ADDR")):
            return view(request, *args, **kwargs)

    return page


class ScreenAdmin(_ModelAdmin):
    """A ModelAdmin for tables of this package: their database, the tenants of the user, the style
    sheet, bounded counts, and only declared lookups.
    """

    tenant_path: ClassVar[str | None] = "tenant"
    """The lookup of the tenant of a row; None if all tenants share the table."""

    list_per_page = 50
    list_max_show_all = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    view_on_site = False
    lookups_allowed: ClassVar[frozenset[str]] = frozenset()
    operations: ClassVar[tuple[Operation, ...]] = ()
    """The operations that its pages offer in addition to its actions."""

    class Media:
        """One style sheet, no scripts."""

        css: ClassVar = {"all": ["django_durable_tasks/admin.css"]}

    @property
    def urls(self) -> list[Any]:
        """Return the pages; what they write is recorded under the user and the address."""
        pages = self.get_urls()
        for page in pages:
            page.callback = _acting_as_user(page.callback)
        return pages

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).using(conf.settings().DATABASE)
        path = self.tenant_path
        return rows if path is None else staff_tenants.visible(request, rows, path)

    def _is_hidden(self, request: HttpRequest) -> bool:
        """Return whether all tenants share the table and the user sees only some of them."""
        return self.tenant_path is None and staff_tenants.is_limited(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) and not self._is_hidden(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not self._is_hidden(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and not self._is_hidden(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and not self._is_hidden(request)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Offer the tenants of the user."""
        if db_field.related_model is Tenant:
            options["queryset"] = staff_tenants.offered(request)
        return super().formfield_for_foreignkey(db_field, request, **options)

    def get_changelist(self, request: HttpRequest, **more: Any) -> type[ChangeList]:
        """Return the ChangeList class that accepts any value in the query string."""
        return ScreenList

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Return the row; None for an id that no row can have."""
        return None if _NUL in object_id else super().get_object(request, object_id, from_field)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions; those of operations only if the user has their permission.

        Since 6.1 Django passes ``action_location``, the list or the page of a row.
        """
        location = {} if action_location is None else {"action_location": action_location}
        given: list[Any] = [one for one in self.actions or () if callable(one)]
        needed = {one.__name__: one.operation for one in given}
        return {
            name: action
            for name, action in super().get_actions(request, **location).items()
            if name not in needed or self.permits(request, needed[name])
        }

    def permits(self, request: HttpRequest, operation: Operation) -> bool:
        """Return whether the user may perform the operation on rows of this table."""
        return operation.is_permitted(request.user) and not self._is_hidden(request)

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *rest: Any, **more: Any
    ) -> Any:
        """Run an action; refuse ids that no row can have before the query."""
        if all(map(self._can_be_id, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            return super().response_action(request, queryset, *rest, **more)
        message = gettext("Nothing was changed: the selection contains an invalid id.")
        self.message_user(request, message, messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())

    def _can_be_id(self, key: str) -> bool:
        primary: Any = self.opts.pk
        try:
            primary.run_validators(primary.to_python(key))
        except ValidationError:
            return False
        return _NUL not in key

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """Refuse undeclared lookups: ``?kwargs__token__startswith=a`` would reveal masked values
        letter by letter.
        """
        own = {getattr(chosen, "parameter_name", None) for chosen in self.list_filter}
        return lookup in self.lookups_allowed | own


class ReadOnlyAdmin(_Unwritable, ScreenAdmin):
    """A ModelAdmin without add, change and delete permissions."""


# Lists of tasks, dead letters and attempts: a condition without an index is applied to the newest
# rows only, and the page shows a message.


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
    advice: ClassVar[Any] = _("Find older ones by the id or a key of their task.")
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
        text = gettext(
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
