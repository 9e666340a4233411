"""Checkers of writes to a Task's status, and of the location of SQL."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.sources import docstrings, nodes, parsed, root_name

VENDORS = "postgresql|mysql|mariadb|sqlite"
SQL_FILE = re.compile(rf"django_durable_tasks/store/sql/[a-z_]+\.({VENDORS})\.sql")
STATEMENT = re.compile(
    r"\b(INSERT\s+(IGNORE\s+|OR\s+\w+\s+)?INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|SELECT\s.*\sFROM\s|FOR\s+(NO\s+KEY\s+)?UPDATE)\b",
    re.DOTALL,
)
OF_THE_SESSION = (
    "SET",
    "PRAGMA",
    "LISTEN",
    "UNLISTEN",
    "NOTIFY",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SHOW",
    "SELECT 1",
)
OF_OTHERS = {"recurring", "workflow_runs"}
"""The functions that return the rows of another model."""
CREATORS = {"create", "acreate", "bulk_create", "abulk_create", "get_or_create", "update_or_create"}


def status_writers(source: str) -> list[str]:
    """Find writes of a Task's status. A chain that starts from another model's name, or from its
    rows, is not a finding.
    """
    writing = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Call)
    written = (node for node in nodes(source) if isinstance(node, writing))
    return [f"{node.lineno}: {what}" for node in written for what in _write_of_status(node)]


def savers(source: str) -> list[str]:
    """Find `.save()`, which writes every column without a guard. Only `super().save()` is allowed."""
    return [
        f"{node.lineno}: .{node.func.attr}() writes without a guard"
        for node in nodes(source)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"save", "asave", "save_base"}
        and not (isinstance(node.func.value, ast.Call) and root_name(node.func.value) == "super")
    ]


def sql_in_python(source: str) -> list[str]:
    """Find SQL statements in strings."""
    tree = parsed(source)
    prose = docstrings(tree)
    return [
        f"{node.lineno}: SQL in a string: {' '.join(node.value.split())[:60]}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        if STATEMENT.search(node.value)
    ]


def executed_literals(source: str) -> list[str]:
    """Find cursors that execute a literal other than a session statement."""
    calls = (node for node in nodes(source) if isinstance(node, ast.Call))
    return [f"{call.lineno}: a literal is executed" for call in calls if _executes_literal(call)]


def misplaced_sql(path: str) -> list[str]:
    """Find an SQL file that is not `store/sql/<verb>.<vendor>.sql`."""
    return (
        [] if SQL_FILE.fullmatch(path) else [f"{path}: SQL stands in store/sql/<verb>.<vendor>.sql"]
    )


def _write_of_status(node: ast.stmt | ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and target.attr == "status"
                and not _of_another(target)
            ):
                yield "status is assigned"
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and not _of_another(node.func)
    ):
        verb = node.func.attr
        if verb in {"update", "aupdate"} and any(
            keyword.arg == "status" for keyword in node.keywords
        ):
            yield "status is updated"
        if verb in {"bulk_update", "abulk_update"} and "'status'" in ast.unparse(node):
            yield "status is updated in bulk"
        if verb in CREATORS and root_name(node.func) == "Task":
            yield f"a Task is created by {verb}"


def _of_another(node: ast.Attribute) -> bool:
    start: ast.AST = node
    while isinstance(start, ast.Attribute | ast.Call):
        if isinstance(start, ast.Call) and _name_of(start.func) in OF_OTHERS:
            return True
        start = start.func if isinstance(start, ast.Call) else start.value
    name = root_name(node)
    return name == "self" or (name[:1].isupper() and name != "Task")


def _name_of(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _executes_literal(node: ast.Call) -> bool:
    match node:
        case ast.Call(
            func=ast.Attribute(attr="execute" | "executemany"), args=[ast.JoinedStr() as text, *_]
        ):
            parts = [part.value for part in text.values[:1] if isinstance(part, ast.Constant)]
        case ast.Call(
            func=ast.Attribute(attr="execute" | "executemany"),
            args=[ast.Constant(value=str(text)), *_],
        ):
            parts = [text]
        case _:
            return False
    return not (parts and str(parts[0]).lstrip().upper().startswith(OF_THE_SESSION))
