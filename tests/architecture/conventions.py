"""Checkers of swallowed errors, waits, property tests and docstrings, beside those of ruff."""

import ast
from collections.abc import Iterator

from tests.architecture.sources import functions, nodes, parsed

BROAD = {"Exception", "BaseException"}
CALLED_BY_FRAMEWORKS = frozenset(
    {
        "ready",
        "handle",
        "add_arguments",
        "lookups",
        "queryset",
        "get_queryset",
        "get_actions",
        "get_urls",
        "get_fields",
    }
    | {
        "get_readonly_fields",
        "get_list_display",
        "get_search_results",
        "save_model",
        "delete_model",
        "changelist_view",
    }
    | {
        "create_sql",
        "remove_sql",
        "constraint_sql",
        "formfield_for_foreignkey",
        "deconstruct",
        "db_type",
        "from_db_value",
        "get_prep_value",
        "to_python",
        "as_sql",
    }
)


def imports_outside_ready(source: str) -> list[str]:
    """Find imports inside functions other than `ready`. Ruff permits all of them in `apps.py`."""
    return [
        f"{node.lineno}: import inside {function.name}"
        for function in functions(parsed(source))
        if function.name != "ready"
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def swallowed_errors(source: str) -> list[str]:
    """Find broad handlers that do nothing, and broad `suppress`."""
    found = []
    for node in nodes(source):
        match node:
            case ast.ExceptHandler(
                type=kind, body=[ast.Pass() | ast.Continue() | ast.Expr(value=ast.Constant())]
            ):
                if kind is None or BROAD.intersection(_names(kind)):
                    found.append(f"{node.lineno}: every error is swallowed")
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=args):
                if any(BROAD.intersection(_names(kind)) for kind in args):
                    found.append(f"{node.lineno}: every error is suppressed")
    return found


def draws_from_state(source: str) -> list[str]:
    """Find a property test whose drawn values depend on anything but earlier draws."""
    found = []
    for node in nodes(source):
        match node:
            case ast.Call(func=ast.Name(id="precondition")):
                found.append(f"{node.lineno}: precondition; use tests.stateful.applies_if")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="st"), attr="data")):
                found.append(f"{node.lineno}: st.data; draw before the rule looks at its state")
    return found


def sleeps(source: str) -> list[str]:
    """Find sleeping by time; a test waits for a condition, with `tests.waiting.until`."""
    found = []
    for node in nodes(source):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time" | "asyncio" | "gevent"), attr="sleep")
            ):
                found.append(f"{node.lineno}: sleep")
            case ast.ImportFrom(names=names) if any(alias.name == "sleep" for alias in names):
                found.append(f"{node.lineno}: sleep is imported")
    return found


def unbounded_waits(source: str) -> list[str]:
    """Find waits for an event, a condition, a thread or a process without a timeout."""
    found = []
    for node in nodes(source):
        match node:
            case ast.Call(func=ast.Attribute(attr="wait" | "join" as name), args=args):
                given = [*args[:1], *(key.value for key in node.keywords if key.arg == "timeout")]
                if all(isinstance(one, ast.Constant) and one.value is None for one in given):
                    found.append(f"{node.lineno}: {name} without a timeout")
    return found


def missing_docstrings(source: str) -> list[str]:
    """Find a module or public class without a docstring."""
    tree = parsed(source)
    found = [] if ast.get_docstring(tree) or not tree.body else ["1: the module has no docstring"]
    classes = (node for node in _public(tree) if isinstance(node, ast.ClassDef))
    return found + [
        f"{node.lineno}: {node.name} has no docstring"
        for node in classes
        if not _has_docstring(node)
    ]


def missing_docstrings_of_functions(source: str) -> list[str]:
    """Find a public function or method without a docstring, in a public interface; frameworks' own
    hooks need none.
    """
    return [
        f"{node.lineno}: {node.name} has no docstring"
        for node in _public(parsed(source))
        if not _has_docstring(node)
    ]


def silent_skips(source: str) -> list[str]:
    """Find skips, and tests expected to fail, without a reason."""
    return [
        f"{node.lineno}: {ast.unparse(node)[:60]} gives no reason"
        for node in nodes(source)
        if isinstance(node, ast.Attribute | ast.Call) and _skips_silently(node)
    ]


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _public(parent: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    for node in parent.body:
        if isinstance(node, Definition) and not node.name.startswith("_") and node.name != "Meta":
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def _has_docstring(node: Definition) -> bool:
    if ast.get_docstring(node) is not None:
        return True
    hook = (
        node.name in CALLED_BY_FRAMEWORKS
        or node.name.startswith("as_")
        or (node.name.startswith("has_") and node.name.endswith("_permission"))
    )
    spoken_elsewhere = any(
        ast.unparse(mark).endswith((".setter", "overload")) for mark in node.decorator_list
    )
    return not isinstance(node, ast.ClassDef) and (hook or spoken_elsewhere)


def _names(kind: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)}


def _skips_silently(node: ast.Attribute | ast.Call) -> bool:
    if isinstance(node, ast.Attribute):
        return False
    name = ast.unparse(node.func)
    if name == "pytest.skip":
        return not node.args and not node.keywords
    if name in {"pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"}:
        return all(keyword.arg != "reason" for keyword in node.keywords)
    return False
