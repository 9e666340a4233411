"""The files that the rules read."""

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = "django_durable_tasks"
EVERYWHERE = (PACKAGE, "tests", "example_project", "benchmarks")
NOT_OURS = {"__pycache__", "migrations", "var", "node_modules"}

Checker = Callable[[str], list[str]]


def python_files(*folders: str, without: frozenset[str] = frozenset()) -> list[Path]:
    """Return the Python files under the folders, without migrations (Django writes them) and the
    named paths.
    """
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    return [
        file
        for file in files
        if not NOT_OURS.intersection(file.parts) and name_of(file) not in without
    ]


def name_of(file: Path) -> str:
    """Return a file's path in the repository."""
    return file.relative_to(ROOT).as_posix()


def findings(checker: Checker, files: list[Path]) -> list[str]:
    """Return the findings of a checker, one line each, with the file."""
    return [
        f"{name_of(file)}:{found}"
        for file in files
        for found in checker(file.read_text(encoding="utf-8"))
    ]


def expect_none(found: list[str]) -> None:
    """Fail with every finding on a separate line."""
    assert not found, "\n" + "\n".join(found)


# Several rules read each file, and parsing costs more than all of them.
@functools.cache
def parsed(source: str) -> ast.Module:
    """Return the syntax tree of Python source. It is shared: do not change it."""
    return ast.parse(source)


@functools.cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return every node of the syntax tree of Python source."""
    return tuple(ast.walk(parsed(source)))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a tree, including nested ones."""
    yield from (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def docstrings(tree: ast.AST) -> set[int]:
    """Return the identities of the constants that are docstrings."""
    places = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, places))
    return {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}


def root_name(node: ast.AST) -> str:
    """Return the name from which a chain of calls and attributes starts: `Task` for
    `Task.objects.filter(...).update`.
    """
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner) | ast.Call(func=inner) | ast.Subscript(value=inner):
                node = inner
            case _:
                return ""
    return node.id
