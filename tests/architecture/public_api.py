"""Checker of imports that users of the package should not need: its capabilities."""

import ast

from tests.architecture.sources import nodes

CAPABILITIES = (
    *("store", "states", "audit", "limits", "dependencies", "targets", "tasks"),
    *("tenants", "schedules", "cluster", "callbacks", "notifications", "scheduler", "verify"),
    *("operations", "command", "choices", "masking", "option_values"),
    *("task_values", "internal_tasks", "workflows.builder", "workflows.diagrams"),
    *("workflows.operations", "workflows.runs"),
)
INTERNAL = tuple(f"django_durable_tasks.{name}" for name in CAPABILITIES)


def internal_imports(source: str) -> list[str]:
    """Find imports of internal packages, by line."""
    return [
        f"{node.lineno}: imports {name}"
        for node in nodes(source)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _imported(node)
        if any(name == package or name.startswith(f"{package}.") for package in INTERNAL)
    ]


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names]
    return names if isinstance(node, ast.Import) else [f"{node.module}.{name}" for name in names]
