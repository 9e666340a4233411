"""The modules of the package, as the programs of this folder read them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "django_durable_tasks"


def is_type_checking(node: ast.stmt) -> bool:
    """Return whether a statement is ``if TYPE_CHECKING:``."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        and not node.orelse
    )


@dataclass
class Module:
    """One file of Python."""

    name: str
    path: Path
    source: str
    tree: ast.Module = field(repr=False)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def imports(self) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
        """Yield all imports with their kind: ``top``, ``typing`` or ``inner``."""
        tops: set[int] = set()
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                tops.add(id(node))
                yield node, "top"
            elif is_type_checking(node):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Import | ast.ImportFrom):
                        tops.add(id(inner))
                        yield inner, "typing"
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in tops:
                yield node, "inner"


def tracked(root: Path, *patterns: str) -> list[str]:
    """Return the tracked files under these patterns that exist."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [path for path in listed if (root / path).is_file()]


def module_at(root: Path, path: str) -> Module:
    """Read one file."""
    source = (root / path).read_text(encoding="utf-8")
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return Module(name, root / path, source, ast.parse(source))


def modules_of(root: Path) -> dict[str, Module]:
    """Return all modules of the package by their names."""
    found = (module_at(root, path) for path in tracked(root, f"{PACKAGE}/*.py"))
    return {module.name: module for module in found}
