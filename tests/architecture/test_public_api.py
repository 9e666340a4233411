"""The documentation and the example project use the public interface only."""

import pytest

from tests.architecture.public_api import internal_imports
from tests.architecture.sources import expect_none, findings, python_files
from tests.documentation.pages import blocks, name_of, pages


def test_no_page_imports_the_engine() -> None:
    snippets = [
        (page, block) for page in pages() for block in blocks(page) if block.language == "python"
    ]
    assert snippets
    expect_none(
        [
            f"{name_of(page)}, the block at line {block.line}, its line {found}"
            for page, block in snippets
            for found in internal_imports(block.text)
        ]
    )


def test_the_example_project_does_not_import_the_engine() -> None:
    expect_none(sorted(findings(internal_imports, python_files("example_project"))))


@pytest.mark.parametrize(
    "breach",
    [
        "import django_durable_tasks.tasks",
        "from django_durable_tasks.workflows import runs",
        "from django_durable_tasks import schedules",
        "def f():\n    from django_durable_tasks.choices import SpecialDay",
    ],
)
def test_an_import_of_the_engine_is_found(breach: str) -> None:
    assert internal_imports(breach)


def test_a_public_import_is_not_found() -> None:
    assert not internal_imports("from django_durable_tasks.models import SpecialDay")
