"""Names of modules say what is in them."""

from pathlib import PurePosixPath

from tests.architecture.sources import EVERYWHERE, expect_none, name_of, python_files

FORBIDDEN = frozenset(
    {"util", "utils", "helper", "helpers", "common", "base", "misc", "core"}
    | {"service", "services", "manager", "managers"}
)


def forbidden_names(path: str) -> list[str]:
    """Find the parts of a path that do not describe its contents."""
    parts = (PurePosixPath(part).stem for part in PurePosixPath(path).parts)
    return [f"{path}: a module named {part}" for part in parts if part in FORBIDDEN]


def test_no_module_has_a_meaningless_name() -> None:
    expect_none(
        [name for file in python_files(*EVERYWHERE) for name in forbidden_names(name_of(file))]
    )


def test_a_module_named_utils_is_found_as_file_and_as_folder() -> None:
    assert forbidden_names("django_durable_tasks/utils.py")
    assert forbidden_names("django_durable_tasks/core/claims.py")
    assert not forbidden_names("django_durable_tasks/tasks/claim.py")
