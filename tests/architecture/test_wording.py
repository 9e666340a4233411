"""Texts that users read are written as in the documentation of Django, Celery and PostgreSQL."""

import pytest

from tests.architecture.sources import expect_none
from tests.architecture.wording import (
    ALLOWED,
    banned_in_page,
    banned_in_python,
    findings_in,
    modules,
    pages,
)


def test_messages_of_the_package_use_no_private_expressions() -> None:
    expect_none(findings_in(modules()))


def test_pages_and_templates_use_no_private_expressions() -> None:
    expect_none(findings_in(pages()))


@pytest.mark.parametrize(
    "source",
    [
        'log.warning("Node %s fell silent", name)',
        'raise ValueError(f"{name} is told twice")',
        'help_text = _("Kept for whoever asks later.")',
        'Error(code, "The scheduler knows no "\n"task of this name")',
        'class Lost(DurableTasksError):\n    """Nobody ended the run."""',
    ],
)
def test_a_private_expression_in_a_string_is_found(source: str) -> None:
    assert len(banned_in_python(source)) == 1


def test_a_finding_shows_line_expression_and_sentence() -> None:
    (found,) = banned_in_page("# Limits\n\nIt starts. A task is let go\nwhen there is capacity.\n")
    assert found.startswith("3: 'let go' (write: release)")
    assert found.endswith("in: A task is let go when there is capacity.")


@pytest.mark.parametrize(
    "text",
    [
        "An operator can hold a task. Each line of text is a log line.",
        "Call `tell()` in ```python\nring()\n``` or see [the page](../house/told.md).",
        "The string starts with a capital; bring it. Use a floor-like value.",
        "A [link](https://example.org/nobody) and a <b class='told'>word</b>.",
    ],
)
def test_ordinary_english_and_code_are_not_found(text: str) -> None:
    assert banned_in_page(text) == []


def test_names_and_docstrings_are_not_messages() -> None:
    assert banned_in_python('def tell():\n    """Tell nobody."""\n    return data["told"]') == []


def test_each_exception_is_used_and_has_a_reason() -> None:
    texts = [file.read_text(encoding="utf-8") for file in (*modules(), *pages())]
    for part, reason in ALLOWED.items():
        assert len(reason.split()) > 2, part
        assert any(part in text for text in texts), f"{part!r} is no longer written anywhere"
