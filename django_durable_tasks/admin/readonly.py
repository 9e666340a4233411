"""What all screens share: rows are only read, lifecycle verbs change them, and big tables stay usable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from django_durable_tasks import conf

COUNTED_AT_MOST = 10_000

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _TabularInline = admin.TabularInline[Any, Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin = admin.ModelAdmin
    _TabularInline = admin.TabularInline
    _Paginator = Paginator


class BoundedPaginator(_Paginator):
    """Counts no further than COUNTED_AT_MOST rows: nobody turns that many pages, and a full count reads the table."""

    @cached_property
    def count(self) -> int:
        """Return how many rows there are, COUNTED_AT_MOST for more."""
        rows: Any = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by().values("pk")[:COUNTED_AT_MOST].count()
        return len(rows)


class _Unwritable:
    """No adding, changing or deleting by hand."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyInline(_Unwritable, _TabularInline):
    """Rows of another table on a page, to be read."""

    extra = 0
    max_num = 0
    can_delete = False


class ScreenAdmin(_ModelAdmin):
    """A screen over one of our tables: our database, our style sheet, bounded counts, no lookups but the named ones."""

    list_per_page = 50
    list_max_show_all = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    view_on_site = False
    lookups_allowed: ClassVar[frozenset[str]] = frozenset()

    class Media:
        """No script; one static file."""

        css: ClassVar = {"all": ["django_durable_tasks/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(conf.settings().DATABASE)

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """Refuse ``?kwargs__token__startswith=a``: it would read masked values letter by letter."""
        own = {getattr(chosen, "parameter_name", None) for chosen in self.list_filter}
        return lookup in self.lookups_allowed | own


class ReadOnlyAdmin(_Unwritable, ScreenAdmin):
    """A screen whose rows are only read."""
