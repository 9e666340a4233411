"""Base classes of the admin: rows are read-only, and large tables stay fast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import actions, display, filters
from django_durable_tasks.admin.fields import NamedRowForm, SplitInstantField, refuse
from django_durable_tasks.audit import acting
from django_durable_tasks.choices import AuditSource
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Tenant
from django_durable_tasks.models.fields import DatabaseNow, InstantField
from django_durable_tasks.operations import Operation

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


class DurableChangeList(ChangeList):
    """A list that finds nothing for a value with a NUL character, which PostgreSQL refuses with an
    error, and that knows whether its number of rows ``is_cut``.
    """

    is_cut = False

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        is_bounded = isinstance(self.paginator, BoundedPaginator)
        if is_bounded and self.result_count >= COUNTED_AT_MOST:
            self.is_cut = True
            # The search form then leaves out the number of results, which would be false.
            self.full_result_count = self.result_count

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        queryset: QuerySet[Any] = super().get_queryset(request, *args, **kwargs)
        values = (value for _name, values in request.GET.lists() for value in values)
        return queryset.none() if any(_NUL in value for value in values) else queryset


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


def section(title: Any, *lines: Any, collapsed: bool = False) -> tuple[Any, Any]:
    """Return an entry of ``fieldsets``. Each line is a field, or several fields side by side."""
    return title, {"fields": lines, "classes": ("collapse",) if collapsed else ()}


def _acting_as_user(view: Any) -> Any:
    @functools.wraps(view)
    def page(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        name = request.user.get_username() if request.method == "POST" else ""
        with acting(AuditSource.ADMIN, name, request.META.get("REMOTE_ADDR")):
            return view(request, *args, **kwargs)

    return page


class DurableModelAdmin(_ModelAdmin):
    """A ModelAdmin for tables of this package: their database, the tenants of the user, the style
    sheet, bounded counts, and only declared lookups.
    """

    tenant_path: ClassVar[str | None] = "tenant"
    """The lookup of the tenant of a row; None if all tenants share the table."""

    list_per_page = 50
    list_max_show_all = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator: ClassVar[type[Paginator[Any]]] = BoundedPaginator
    view_on_site = False
    formfield_overrides: ClassVar = {
        InstantField: {"form_class": SplitInstantField, "widget": AdminSplitDateTime}
    }
    lookups_allowed: ClassVar[frozenset[str]] = frozenset()
    operations: ClassVar[tuple[Operation, ...]] = ()
    """The operations that its pages offer in addition to its actions."""
    page_operations: ClassVar[tuple[Operation, ...]] = ()
    """Those of them that have a page for each row."""
    named_by: ClassVar[tuple[str, ...]] = ("name",)
    """The columns that the name of a row in its history needs."""
    labels: ClassVar[Mapping[str, Any]] = {}
    """The titles of columns if they differ from those of the model."""
    reads_with_page: ClassVar[tuple[str, ...]] = ()
    """The relations that the page of a row shows; lists have ``list_select_related``."""
    unlisted: ClassVar[tuple[str, ...]] = ()
    """The large columns that the list does not read."""
    change_form_template = "admin/django_durable_tasks/change_form.html"

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

    def pages(self) -> Iterable[tuple[str, Callable[..., Any], str]]:
        """Return the route, the view and the name of each page that a ModelAdmin does not have."""
        if self.page_operations:
            route = "<uuid:object_id>/do/<str:name>/"
            yield route, self.operation_view, f"{self.opts.model_name}_do"

    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site.admin_view
        urls = [
            path(route, site(view), name=f"django_durable_tasks_{name}")
            for route, view, name in self.pages()
        ]
        return [*urls, *super().get_urls()]

    def page(
        self, request: HttpRequest, template: str, title: Any, **context: Any
    ) -> TemplateResponse:
        """Return a page of this ModelAdmin."""
        site = self.admin_site.each_context(request)
        context = {**site, "opts": self.opts, "media": self.media, "title": title, **context}
        return TemplateResponse(request, f"admin/django_durable_tasks/{template}.html", context)

    def operation_view(self, request: HttpRequest, object_id: Any, name: str) -> HttpResponse:
        """Show the page of an operation on a row, and perform it."""
        operation = actions.permitted(self, request, self.page_operations, name)
        rows = self.get_queryset(request).filter(pk=object_id)
        if operation.statuses:
            rows = rows.filter(status__in=operation.statuses)
        row = rows.first()
        if row is None:
            raise Http404("No row has this id, or its status does not allow this.")
        return actions.respond(self, request, self.operation_page(request, operation, row))

    def operation_page(
        self, request: HttpRequest, operation: Operation, row: Any
    ) -> actions.OperationPage:
        """Return the page of an operation on this row, in the mode of the query string."""
        mode = next(
            (mode for mode in operation.modes if mode.name == request.GET.get("mode")),
            next(iter(operation.modes), None),
        )
        rows = self.model._default_manager.using(row._state.db).filter(pk=row.pk)
        return actions.OperationPage(
            operation=operation,
            subject=rows if operation.target.is_queryset else row,
            title=f"{operation.title}: {self.title_of(row)}",
            back=display.page_of(str(self.opts.model_name), row.pk),
            of=self,
            keys=[row.pk],
            help=mode.help if mode else operation.help,
            values={"mode": mode.name} if mode else {},
            address=f"{request.path}?mode={mode.name}" if mode else request.path,
            tabs=[
                {
                    "title": each_mode.title,
                    "address": f"{request.path}?mode={each_mode.name}",
                    "here": each_mode is mode,
                }
                for each_mode in operation.modes
            ],
        )

    def title_of(self, row: Any) -> str:
        """Return the name of a row in the titles of its operations."""
        return f"{row.name} {display.short(row.pk)}"

    def line_of(self, row: Any) -> str:
        """Return the name of a row in the list of rows that an action changes."""
        return str(row)

    def operation_url(self, row: Any, operation: Operation) -> str:
        """Return the URL of the page of an operation on this row."""
        name = f"admin:django_durable_tasks_{self.opts.model_name}_do"
        return reverse(name, args=[row.pk, operation.name])

    def operation_buttons(
        self, request: HttpRequest, row: Any, fits: Mapping[Operation, bool]
    ) -> list[dict[str, Any]]:
        """Return the buttons of the permitted operations that fit the row."""
        return [
            {
                "url": self.operation_url(row, operation),
                # A preview locks rows: it is requested by a POST.
                "posts": operation.dry_run and not operation.fields,
                "title": f"{operation.title}…",
            }
            for operation, fit in fits.items()
            if fit and self.permits(request, operation)
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of the user's tenants, with the time of the database as ``seen_at``."""
        rows = super().get_queryset(request).using(conf.settings().DATABASE)
        rows = rows.annotate(seen_at=DatabaseNow())
        if self.tenant_path is not None:
            rows = filters.visible(request, rows, self.tenant_path)
        match = request.resolver_match
        if match is not None and str(match.url_name).endswith("_changelist"):
            return rows.defer(*self.unlisted) if self.unlisted else rows
        return rows.select_related(*self.reads_with_page) if self.reads_with_page else rows

    # Columns: a field of the model is shown by its type -------------------------------------------

    def shown(self, name: Any) -> Any:
        """Return the column of a name in ``list_display`` or ``fieldsets``."""
        if not isinstance(name, str) or hasattr(self, name):
            return name
        field = next((column for column in self.opts.concrete_fields if column.name == name), None)
        return (field and display.column_of(field, self.labels.get(name))) or name

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return [self.shown(name) for name in self.list_display]

    def get_sortable_by(self, request: HttpRequest) -> Any:
        return [self.shown(name) for name in super().get_sortable_by(request)]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [self.shown(name) for name in self.readonly_fields]

    def sections(self, request: HttpRequest, obj: Any) -> Any:
        """Return the sections of a page; ``fieldsets`` by default."""
        return super().get_fieldsets(request, obj)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the sections, in which fields that the user cannot change are shown as columns."""
        readonly = self.get_readonly_fields(request, obj)
        is_editable = obj is None or self.has_change_permission(request, obj)

        def shown(name: Any) -> Any:
            if isinstance(name, list | tuple):
                return tuple(map(shown, name))
            column = self.shown(name)
            return name if is_editable and column not in readonly else column

        return [
            (title, {**options, "fields": [shown(line) for line in options["fields"]]})
            for title, options in self.sections(request, obj)
        ]

    def attach(self, rows: list[Any]) -> None:
        """Read what the columns of these rows need of other tables, in a fixed number of
        statements.
        """

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the rows of the page and what their columns need."""
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        self.attach(page.result_list)
        return page

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return what the page of a row shows beside its fields, such as ``sentences`` and
        ``buttons``.
        """
        return {}

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add sentences about the state of the row, and the buttons of the operations."""
        if context.get("original") is not None:
            context.update(self.page_context(request, context["original"]))
        return super().render_change_form(request, context, *args, **kwargs)

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Show the refusal of an operation as a message."""
        try:
            return super().changeform_view(request, object_id, *args, **kwargs)
        except DurableTasksError as refused:
            self.message_user(request, f"Nothing was changed. {refused}", messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    # Permissions ----------------------------------------------------------------------------------

    def _is_hidden(self, request: HttpRequest) -> bool:
        """Return whether all tenants share the table and the user sees only some of them."""
        return self.tenant_path is None and filters.is_limited(request)

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
            options["queryset"] = filters.offered(request)
        return super().formfield_for_foreignkey(db_field, request, **options)

    def get_changelist(self, request: HttpRequest, **more: Any) -> type[ChangeList]:
        """Return the ChangeList class that accepts any value in the query string."""
        return DurableChangeList

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Return the row, and whether the user may read its secrets as ``read_plain``; None for an
        id that no row can have.
        """
        row = None if _NUL in object_id else super().get_object(request, object_id, from_field)
        if row is not None:
            row.read_plain = display.reads_secrets(request)
            self.attach([row])
        return row

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions; those of operations only if the user has their permission.

        Since 6.1 Django passes ``action_location``, the list or the page of a row.
        """
        location = {} if action_location is None else {"action_location": action_location}
        functions: list[Any] = [declared for declared in self.actions or () if callable(declared)]
        needed = {declared.__name__: declared.operation for declared in functions}
        return {
            name: action
            for name, action in super().get_actions(request, **location).items()
            if name not in needed or self.permits(request, needed[name])
        }

    def permits(self, request: HttpRequest, operation: Operation) -> bool:
        """Return whether the user may perform the operation on rows of this table."""
        return operation.is_permitted(request.user) and not self._is_hidden(request)

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Run an action; refuse ids that no row can have before the query."""
        if all(map(self._can_be_id, request.POST.getlist(ACTION_CHECKBOX_NAME))):
            return super().response_action(request, queryset, *args, **kwargs)
        message = "Nothing was changed: the selection contains an invalid id."
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
        of_filters = {getattr(chosen, "parameter_name", None) for chosen in self.list_filter}
        return lookup in self.lookups_allowed | of_filters


class OwnFormAdmin(DurableModelAdmin):
    """Rows that are added and changed by an operation, on a page of their own."""

    noun: ClassVar[str]
    """The name of such a row in titles and messages."""
    previews: ClassVar[frozenset[str]] = frozenset({"_look"})
    """The buttons of the page that save nothing."""

    def pages(self) -> Iterable[tuple[str, Callable[..., Any], str]]:
        name = self.opts.model_name
        yield "add/", self.edit_view, f"{name}_add"
        yield "<str:object_id>/edit/", self.edit_view, f"{name}_edit"
        yield from super().pages()

    def edit_view(self, request: HttpRequest, object_id: str | None = None) -> HttpResponse:
        """Show the form of a row or of a new one, show what it would do, and save it."""
        row = None
        if object_id is None:
            if not self.has_add_permission(request):
                raise PermissionDenied
        else:
            if not (self.has_edit_permission(request) and self.has_view_permission(request)):
                raise PermissionDenied
            row = self.get_object(request, object_id)
            if row is None or not self.is_editable(row):
                raise Http404(f"No {self.noun} with this id can be edited.")
        posted = (request.POST, request.FILES) if request.method == "POST" else ()
        form = self.edit_form(request, *posted, row=row, tenants=filters.offered(request))
        context: dict[str, Any] = {}
        if posted and form.is_valid() and row is None:
            named = self.with_name(self.get_queryset(request).filter(**form.identity()))
            if named.exists():
                form.add_error("name", f"A {self.noun} with this name already exists.")
        if posted and form.is_valid():
            try:
                if self.previews.isdisjoint(request.POST):
                    saved, message = self.save_row(request, form)
                    actions.remember(self, request, [saved.pk], form.summary())
                    self.message_user(request, message)
                    page = display.page_of(str(self.opts.model_name), saved.pk)
                    may_view = self.has_view_permission(request)
                    return HttpResponseRedirect(page if may_view else request.path)
                context = self.preview(request, form)
            except DurableTasksError as refused:
                refuse(form, refused)
        model = str(self.opts.model_name)
        title = f"Edit {self.noun} {row.name}" if row else f"Add a {self.noun}"
        back = display.page_of(model, row.pk) if row else display.list_of(model)
        context = {"form": form, "row": row, "back": back, **context}
        return self.page(request, f"{model}/edit", title, **context)

    def edit_form(
        self, request: HttpRequest, *posted: Any, row: Any, tenants: QuerySet[Tenant]
    ) -> NamedRowForm:
        """Return the form."""
        raise NotImplementedError

    def preview(self, request: HttpRequest, form: Any) -> dict[str, Any]:
        """Return the context of what saving the valid form would do."""
        raise NotImplementedError

    def save_row(self, request: HttpRequest, form: Any) -> tuple[Any, str]:
        """Save the valid form; return the row and a message."""
        raise NotImplementedError

    def has_edit_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may change rows on this page."""
        raise NotImplementedError

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse the stock form."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def is_editable(self, row: Any) -> bool:
        """Return whether this row can be changed."""
        return True

    def with_name(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return those of the rows with a name that make it unavailable."""
        return rows

    def edit_buttons(self, request: HttpRequest, row: Any, title: str) -> list[dict[str, Any]]:
        """Return the button of the page that edits this row."""
        if not self.has_edit_permission(request) or not self.is_editable(row):
            return []
        name = f"admin:django_durable_tasks_{self.opts.model_name}_edit"
        return [{"url": reverse(name, args=[row.pk]), "title": title}]


class ReadOnlyAdmin(_Unwritable, DurableModelAdmin):
    """A ModelAdmin without add, change and delete permissions."""


# Lists of tasks, dead letters and attempts: a condition without an index is applied to the newest
# rows only, and the page shows a message.


LOOKED_THROUGH = 100_000
"""How many of the newest rows are read for a condition without an index. An index for each filter
would cost every ending a write; without a bound a rare value would read the whole table.
"""


class NewestRowsList(DurableChangeList):
    """A list that applies filters without an index to the newest rows only."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        queryset = super().get_queryset(request, *args, **kwargs)
        admin: Any = self.model_admin
        return admin.newest(request, queryset) if admin.filters_without_index(request) else queryset


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
        bounds = [row[0] for row in oldest]
        if len(bounds) < 2:
            return rows
        if request.method == "GET":  # an action reads the same rows twice
            text = (
                f"These filters have no index: only the newest {LOOKED_THROUGH:,} rows were"
                f" searched. {self.advice}"
            )
            self.message_user(request, text, messages.INFO)
        return rows.filter(pk__gte=bounds[0])

    def get_changelist(self, request: HttpRequest, **more: Any) -> type[ChangeList]:
        return NewestRowsList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        condition = filters.search_by_key(search_term, self.path_to_task)
        if condition is not None:
            return queryset.filter(condition), False
        names = filters.names_like(search_term)
        rows = queryset.filter(**{f"{self.path_to_task}name__in": names})
        # The list itself applies the bound of a filter without an index.
        bounded = names and self.searches_all(request) and not self.filters_without_index(request)
        return (self.newest(request, rows) if bounded else rows), False

    def _has(self, request: HttpRequest, names: frozenset[str]) -> bool:
        return any(request.GET.get(name) for name in names)

    def searches_all(self, request: HttpRequest) -> bool:
        """Return whether the list can contain every row of the table."""
        return True
