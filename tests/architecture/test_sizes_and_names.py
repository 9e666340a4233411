"""Files, functions and names obey their limits."""

import pytest

from tests.architecture.sizes import (
    FILE_LINES,
    FUNCTION_LINES,
    forbidden_names,
    long_files,
    long_functions,
    public_classes,
)
from tests.architecture.sources import (
    EVERYWHERE,
    PACKAGE,
    expect_none,
    findings,
    name_of,
    python_files,
)

DJANGO_REQUIRES = {"Command"}
"""Names that Django looks up, so that several modules have to define them."""


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    expect_none(findings(long_files, python_files(*EVERYWHERE)))


def test_no_function_is_longer_than_forty_lines() -> None:
    expect_none(findings(long_functions, python_files(*EVERYWHERE)))


def test_no_module_has_a_meaningless_name() -> None:
    expect_none(
        [found for file in python_files(*EVERYWHERE) for found in forbidden_names(name_of(file))]
    )


def test_a_file_and_a_function_one_line_too_long_are_found() -> None:
    function = "def long(\n    first,\n):\n    '''Docstring.'''\n" + "    pass\n" * FUNCTION_LINES
    assert long_functions(function + "    pass\n")
    assert not long_functions(function)
    assert long_files("\n" * (FILE_LINES + 1))
    assert not long_files("\n" * FILE_LINES)


def test_a_nested_function_is_measured_too() -> None:
    assert long_functions("class Room:\n    def long(self):\n" + "        pass\n" * 41)


def test_a_module_named_utils_is_found_as_file_and_as_folder() -> None:
    assert forbidden_names("django_durable_tasks/utils.py")
    assert forbidden_names("django_durable_tasks/core/claims.py")
    assert not forbidden_names("django_durable_tasks/engine/tasks/claim.py")


def test_a_public_class_name_exists_once() -> None:
    modules: dict[str, list[str]] = {}
    for file in python_files(PACKAGE):
        for name in public_classes(file.read_text()):
            modules.setdefault(name, []).append(name_of(file))
    expect_none(
        [
            f"class {name} is defined in {', '.join(files)}"
            for name, files in modules.items()
            if len(files) > 1 and name not in DJANGO_REQUIRES
        ]
    )


@pytest.mark.parametrize(
    ("source", "names"),
    [("class Gate:\n    class Inner: ...\n", ["Gate"]), ("class _Private: ...\n", [])],
)
def test_public_classes_of_a_module_are_found(source: str, names: list[str]) -> None:
    assert public_classes(source) == names
