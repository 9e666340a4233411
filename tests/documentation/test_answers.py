"""The page about symptoms quotes sentences that the package contains."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.documentation.pages import DOCS
from tests.runs import ROOT

PAGE = DOCS / "how-to" / "troubleshoot.md"
# A sentence in backticks. Those with an ellipsis are shortened.
_QUOTED = re.compile(r"`([A-Z][^`]{18,}(?<!\.)\.)`")
_LEAST = 12
_PLACE = re.compile(r"%(?:\.\d+)?[sdrfg]|%\.\d+f")


@cache
def _templates() -> list[re.Pattern[str]]:
    """Return the texts of the package as patterns, with any text for what they insert."""
    found = []
    for file in (ROOT / "django_durable_tasks").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [
                _PLACE.sub("\0", part.value)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
                else "\0"
                for part in parts
            ]
            text = re.sub("\0+", "\0", "".join(texts).replace("`", ""))
            if len(text.replace("\0", "")) > _LEAST:
                found.append(re.compile(re.escape(text).replace("\0", ".*")))
    return found


def _is_known(sentence: str) -> bool:
    """Return whether a text of the package is the sentence, or its beginning."""
    return any(template.match(sentence) for template in _templates())


def test_the_quoted_sentences_exist() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    quoted = _QUOTED.findall(page)
    assert len(quoted) > 10
    assert [sentence for sentence in quoted if not _is_known(sentence)] == []


def test_a_sentence_that_does_not_exist_is_found() -> None:
    assert _is_known("It is not due yet: in 119 min.")
    assert not _is_known("The task will never run, for no reason.")
