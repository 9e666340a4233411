"""Checkers of sizes and names."""

import ast
from pathlib import PurePosixPath

from tests.architecture.sources import functions

FILE_LINES = 400
FUNCTION_LINES = 40
FORBIDDEN = frozenset(
    {"util", "utils", "helper", "helpers", "common", "base", "misc", "core"}
    | {"service", "services", "manager", "managers"}
)


def long_files(source: str) -> list[str]:
    """Find a file over the limit."""
    lines = len(source.splitlines())
    return [f"1: {lines} lines, over {FILE_LINES}"] if lines > FILE_LINES else []


def long_functions(source: str) -> list[str]:
    """Find functions whose body, without its docstring, is over the limit.

    Signatures do not count: the formatter writes each parameter on a line of its own.
    """
    return [
        f"{function.lineno}: {function.name} has {lines} lines, over {FUNCTION_LINES}"
        for function in functions(ast.parse(source))
        if (lines := _body_lines(function)) > FUNCTION_LINES
    ]


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def forbidden_names(path: str) -> list[str]:
    """Find the parts of a path that do not describe its contents."""
    parts = (PurePosixPath(part).stem for part in PurePosixPath(path).parts)
    return [f"{path}: a module named {part}" for part in parts if part in FORBIDDEN]


def public_classes(source: str) -> list[str]:
    """Return the names of the public classes that a module defines."""
    found = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return [node.name for node in found if not node.name.startswith("_")]
