"""Print the import cycles that the merged modules would have; print nothing else.

    python layout/cycles.py ROOT plan.json

Imports within functions and under ``TYPE_CHECKING`` do not count. Their number is printed to
stderr.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from sources import PACKAGE, modules_of


def imported(node: ast.Import | ast.ImportFrom, known: set[str]) -> Iterator[str]:
    """Yield the modules of the package that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        names = [
            full if (full := f"{node.module}.{alias.name}") in known else str(node.module)
            for alias in node.names
        ]
    yield from (name for name in names if name in known)


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while True:
                component.append(stack.pop())
                if component[-1] == node:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main(root: Path, plan: Path) -> None:
    """Read all modules, and print each cycle with the old imports that make it."""
    moves = json.loads(plan.read_text())["moves"]
    modules = modules_of(root)
    known = set(modules)
    graph: dict[str, set[str]] = {}
    why: dict[tuple[str, str], list[str]] = {}
    inner = typing_only = 0
    for name, module in modules.items():
        here = moves.get(name, name)
        for node, kind in module.imports():
            for target in imported(node, known):
                if kind == "inner":
                    inner += 1
                elif kind == "typing":
                    typing_only += 1
                else:
                    there = moves.get(target, target)
                    if there != here:
                        graph.setdefault(here, set()).add(there)
                        why.setdefault((here, there), []).append(f"{name} -> {target}")
    for component in strongly_connected(graph):
        print("cycle:", " ".join(one.removeprefix(f"{PACKAGE}.") for one in component))
        for (here, there), reasons in sorted(why.items()):
            if here in component and there in component:
                for reason in reasons:
                    print("   ", reason.replace(f"{PACKAGE}.", ""))
    print(f"{inner} imports in functions, {typing_only} for types only", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
