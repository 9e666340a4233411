"""The page "Logs" lists every logger of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.documentation.pages import DOCS
from tests.runs import ROOT

PAGE = DOCS / "how-to" / "logs.md"


def _loggers() -> Iterator[str]:
    for file in (ROOT / "django_durable_tasks").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="getLogger"), args=[ast.Constant(value=str(name))]
                ):
                    yield name


def test_the_page_lists_the_loggers_that_exist() -> None:
    listed = re.findall(r"`(django_durable_tasks(?:\.\w+)+)`", PAGE.read_text(encoding="utf-8"))
    modules = {"django_durable_tasks.json_logs"}
    assert {*listed} - modules == {*_loggers()}
