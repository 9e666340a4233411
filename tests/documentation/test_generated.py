"""Generated pages match the current code."""

from __future__ import annotations

import pytest

from docs.generate import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    stands = (ROOT / name).read_text(encoding="utf-8")
    assert stands == PAGES[name](), (
        f"docs/{name} is stale: run `python -m docs.generate` and commit it"
    )
