"""Every file and function that a page about the code names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.documentation.pages import DOCS, name_of
from tests.runs import ROOT

PACKAGE = ROOT / "django_durable_tasks"
PAGES = [
    DOCS / "contributing" / "where_things_are.md",
    DOCS / "contributing" / "how_to_add.md",
    DOCS / "explanation" / "architecture.md",
    ROOT / "CONTRIBUTING.md",
]
_PATH = re.compile(r"`(?P<path>[\w./-]+(?:/|\.py|\.md|\.toml|\.sql))(?::(?P<name>[\w.]+))?`")
_DOTTED = re.compile(r"`(?P<name>[a-z_]+(?:\.\w+)+)`")


@cache
def names_in(file: Path) -> frozenset[str]:
    """Return the functions and classes of a module, methods as `Class.method`."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        found |= _defined(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for part in node.body for name in _defined(part)}
    return frozenset(found)


def _defined(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def located(dotted: str) -> tuple[Path, str] | None:
    """Split `tasks.claim.claim_of` into the file and the name in it, if there is such a file."""
    parts = dotted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        file = PACKAGE.joinpath(*parts[:end]).with_suffix(".py")
        if file.is_file():
            return file, ".".join(parts[end:])
    return None


def missing(text: str) -> list[str]:
    """Return the names on a page that the repository does not have."""
    found = []
    for match in _PATH.finditer(text):
        files = [root / match["path"] for root in (PACKAGE, ROOT)]
        there = [file for file in files if file.exists()]
        if not there or (match["name"] and match["name"] not in names_in(there[0])):
            found.append(match.group())
    for match in _DOTTED.finditer(text):
        first = match["name"].split(".")[0]
        if not (PACKAGE / first).is_dir() or match["name"].endswith((".py", ".sql")):
            continue
        place = located(match["name"])
        is_package = PACKAGE.joinpath(*match["name"].split(".")).with_suffix(".py").is_file()
        if not is_package and (place is None or place[1] not in names_in(place[0])):
            found.append(match.group())
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_functions_named_on_a_page_exist(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []


def test_the_counts_of_files_in_each_flow_are_right() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    flows = page.split("<!-- flow:")[1:]
    assert len(flows) == 3
    for flow in flows:
        mark, _, text = flow.partition(" -->")
        places = [located(match["name"]) for match in _DOTTED.finditer(text)]
        files = {place[0] for place in places if place is not None}
        assert mark.endswith(f" files:{len(files)}"), (mark, len(files))
        assert f": {len(files)} files, before" in text


def test_a_missing_file_and_a_missing_function_are_found() -> None:
    wrong = "`engine/nowhere.py` `tasks/claim.py:nothing` `tasks.claim.nothing`"
    assert len(missing(wrong)) == 3
    assert missing("`choices.py:Status` `choices.Status` `tasks.claim`") == []
