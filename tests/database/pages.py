"""Plans of statements, and the database pages that the statements of a call read (PostgreSQL)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction
from django.db.models import QuerySet

from django_durable_tasks.store import dialects


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


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan in the format JSON."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes_of(inner)


class Plan:
    """The plan of one statement, which is executed and rolled back: its nodes, and the pages they
    read.
    """

    def __init__(self, sql: str, parameters: Any) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            # The statistics are a random sample, so a plan with parallel workers is possible. Their
            # reads of the catalogs would count as pages of the statement.
            cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters)
            answer = cursor.fetchone()[0]
            transaction.set_rollback(True)
        self.root = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
        self.nodes = list(nodes_of(self.root))

    @classmethod
    def of(cls, queryset: QuerySet[Any]) -> Plan:
        """Return the plan of a queryset."""
        return cls(*queryset.query.sql_with_params())

    @classmethod
    def of_statement(cls, operation: str, **parameters: Any) -> Plan:
        """Return the plan of an operation of the store."""
        sql = dialects.text(operation, "postgresql")
        assert sql is not None
        return cls(sql, parameters)

    def pages(self, within: str = "") -> int:
        """Count the pages that the statement, or one of its named parts, touched."""
        (root,) = (
            [node for node in self.nodes if node.get("Subplan Name") == within]
            if within
            else [self.root]
        )
        return int(root["Shared Hit Blocks"]) + int(root["Shared Read Blocks"])

    def compared(self) -> int:
        """Return the number of row pairs that nested loops compared without a match."""
        return sum(
            node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"] for node in self.nodes
        )

    def indexes(self) -> set[str]:
        """Name the indexes by which tables were read."""
        return {str(node["Index Name"]) for node in self.nodes if "Index Name" in node}

    def read_completely(self) -> set[str]:
        """Name the tables that were read completely."""
        scans = (node for node in self.nodes if node["Node Type"].endswith("Seq Scan"))
        return {str(scan["Relation Name"]) for scan in scans}

    def expect(self, *indexes: str, pages: int) -> None:
        """Assert that the statement used these indexes, read few pages, and no table completely."""
        assert not self.read_completely(), self
        assert self.indexes() >= set(indexes), self
        assert self.pages() < pages, self

    def __str__(self) -> str:
        """List the nodes with their rows and pages, for the message of a failed assertion."""
        names = ("Node Type", "Index Name", "Actual Rows", "Actual Loops", "Shared Hit Blocks")
        return "\n".join(
            ", ".join(f"{name}: {node[name]}" for name in names if name in node)
            for node in self.nodes
        )


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
            scans = (node for node in nodes_of(plan) if node["Node Type"].endswith("Seq Scan"))
            # An empty or one-page table is best read completely.
            found.whole |= {
                scan["Relation Name"] for scan in scans if scan["Shared Hit Blocks"] > 10
            }
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explained):
        found.result = act()
    return found
