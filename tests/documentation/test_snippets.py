"""Every Python block of README and docs runs, page by page and in order, against the test project's
database.
"""

from __future__ import annotations

import itertools
import re
import unittest
from pathlib import Path
from typing import Any

import pytest
from django.core import mail
from django.db import transaction
from django.test import TestCase

from django_durable_tasks.models import Task
from tests.documentation.pages import Block, blocks, name_of, pages, set_names

NOT_RUN = "no-run:"
_runs_so_far = itertools.count(1)


def _python(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def _runs(block: Block) -> bool:
    """Return whether a block runs here. Settings are pasted into a project by test_settings."""
    return not block.rest.startswith(NOT_RUN) and not set_names(block)


def _run(page: Path) -> dict[str, Any]:
    title = re.sub(r"\W", "_", name_of(page).removesuffix(".md"))
    names: dict[str, Any] = {"__name__": f"documented.{title}_{next(_runs_so_far)}"}
    for block in _python(page):
        if _runs(block):
            block.run(names)
    return names


@pytest.mark.parametrize(
    "page", [page for page in pages() if any(map(_runs, _python(page)))], ids=name_of
)
def test_every_snippet_of_a_page_runs(page: Path, eager: None) -> None:
    names = _run(page)
    cases = [
        case for case in names.values() if isinstance(case, type) and issubclass(case, TestCase)
    ]
    for case in cases:
        if case is not TestCase:
            _expect_success(case)


def _expect_success(case: type[TestCase]) -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.testsRun
    assert result.wasSuccessful(), "\n".join(text for _, text in result.errors + result.failures)


def test_a_block_that_does_not_run_is_valid_python_and_has_a_reason() -> None:
    for page in pages():
        for block in _python(page):
            compile(block.text, f"{name_of(page)}:{block.line}", "exec")
            reason = block.rest.removeprefix(NOT_RUN).strip()
            assert _runs(block) or set_names(block) or len(reason.split()) > 2, (
                f"{name_of(page)}:{block.line} gives no reason"
            )


def test_the_readme_does_what_it_says(eager: None) -> None:
    names = _run(pages()[0])
    mail.outbox.clear()
    names["sign_up"]("grace", "grace@example.com")
    assert [message.to for message in mail.outbox] == [["grace@example.com"]]
    assert Task.objects.latest("pk").status == "SUCCESS"


def test_the_readmes_task_does_not_exist_when_its_transaction_is_rolled_back(eager: None) -> None:
    names = _run(pages()[0])
    before = Task.objects.count()
    with transaction.atomic():
        names["sign_up"]("grace", "grace@example.com")
        transaction.set_rollback(True)
    assert Task.objects.count() == before
