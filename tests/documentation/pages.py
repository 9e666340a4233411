"""The pages of the documentation, their fenced blocks and their links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.runs import ROOT

DOCS = ROOT / "docs"
_OPENING = re.compile(r"^(?P<fence>`{3,})(?P<info>[^`]*)$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its position (line from 1), the info string, and its contents."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        """Return the first word after the fence."""
        return self.info.partition(" ")[0]

    @property
    def rest(self) -> str:
        """Return what follows the language."""
        return self.info.partition(" ")[2].strip()

    def run(self, names: dict[str, Any]) -> None:
        """Run it in this namespace. A traceback shows the page and its line."""
        padded = "\n" * self.line + self.text
        # As a reader runs it, without the future statements of this module.
        code = compile(padded, str(self.page), "exec", dont_inherit=True)
        exec(code, names)  # noqa: S102 - the pages are ours


def pages() -> list[Path]:
    """Return the README and every page under docs."""
    written = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
    return [ROOT / "README.md", *written]


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return list(_blocks(page, page.read_text(encoding="utf-8").splitlines()))


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    fence, info, start = "", "", 0
    for number, line in enumerate(lines, 1):
        opening = _OPENING.match(line)
        if not fence and opening:
            fence, info, start = opening["fence"], opening["info"].strip(), number
        elif fence and line.startswith(fence):
            yield Block(page, start, info, "\n".join(lines[start : number - 1]) + "\n")
            fence = ""


def set_names(block: Block) -> set[str]:
    """Return the settings that a Python block assigns or changes at its top level; none for other
    blocks.
    """
    if block.language != "python":
        return set()
    targets: list[ast.expr] = []
    for statement in ast.parse(block.text).body:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
            targets.append(statement.target)
    names = set()
    for target in targets:
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name) and target.id.isupper():
            names.add(target.id)
    return names


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in blocks(page):
        for number in range(block.line - 1, block.line + block.text.count("\n") + 1):
            lines[number] = ""
    return "\n".join(lines)


def links(page: Path) -> list[str]:
    """Return the targets of the links of a page."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST create them."""
    return {_slug(heading) for heading in _HEADING.findall(prose(page))}


def _slug(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")
