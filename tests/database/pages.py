"""Count the database pages that the statements of a call read, and name the nodes of their plans
(PostgreSQL).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import connection


@dataclass
class Touched:
    """What the statements of one call read. ``whole`` names tables that were read completely."""

    result: Any = None
    pages: int = 0
    statements: list[tuple[int, str]] = field(default_factory=list)
    whole: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.pages} pages, {self.whole}, " + "\n".join(
            f"{number}: {sql}" for number, sql in self.statements
        )


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)


def touched_by(act: Callable[[], Any]) -> Touched:
    """Call ``act`` and return what its SELECTs read. Each is explained with its own parameters
    before it runs.
    """
    found = Touched()

    def explained(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if sql.lstrip().startswith(("SELECT", "WITH RECURSIVE", "--")):
            with connection.connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
                plan = cursor.fetchone()[0][0]["Plan"]
            pages = int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
            found.pages += pages
            found.statements.append((pages, sql))
            scans = (node for node in _nodes(plan) if node["Node Type"].endswith("Seq Scan"))
            # An empty or one-page table is best read completely.
            found.whole |= {
                scan["Relation Name"] for scan in scans if scan["Shared Hit Blocks"] > 10
            }
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explained):
        found.result = act()
    return found
