"""Links between pages have targets, and every page is in the table of contents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.pages import DOCS, anchors, blocks, links, name_of, pages
from tests.runs import ROOT


def _dead(page: Path) -> list[str]:
    found = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            found.append(link)
    return found


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_have_targets(page: Path) -> None:
    assert _dead(page) == []


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = set()
    for page in pages():
        for block in blocks(page):
            if block.language == "{toctree}":
                lines = [line.strip() for line in block.text.splitlines()]
                entries = [line for line in lines if line and not line.startswith(":")]
                listed |= {
                    (page.parent / f"{entry.removesuffix('.md')}.md").resolve() for entry in entries
                }
    written = {page for page in pages() if DOCS in page.parents and page != DOCS / "index.md"}
    assert written - listed == set()
    assert {page for page in listed if not page.exists()} == set()


def _linked(page: Path) -> set[Path]:
    found = {link.partition("#")[0] for link in links(page) if "://" not in link}
    return {(page.parent / path).resolve() for path in found if path.endswith(".md")}


def test_every_page_is_linked_where_a_reader_on_github_sees_it() -> None:
    """GitHub does not show the table of contents that Sphinx makes of ``toctree``."""
    index, decisions = DOCS / "index.md", DOCS / "adr" / "index.md"
    seen = _linked(index) | _linked(decisions) | {index}
    written = {page for page in pages() if DOCS in page.parents}
    assert sorted(map(name_of, written - seen)) == []
    assert index in _linked(ROOT / "README.md")


def test_the_guarantees_are_in_the_order_of_the_readme() -> None:
    promised = re.findall(r"(?m)^(\d)\. \*\*(\w+ \w+)", (ROOT / "README.md").read_text())
    explained = re.findall(
        r"(?m)^## (\d)\. (\w+ \w+)", (DOCS / "explanation" / "guarantees.md").read_text()
    )
    assert len(promised) >= 7
    assert explained[: len(promised)] == promised
