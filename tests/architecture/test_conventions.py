"""No error is swallowed, no test sleeps, each wait ends, everything public has a docstring. Ruff
checks that imports are at the top and that nothing prints.
"""

import pytest

from tests.architecture import conventions
from tests.architecture.sources import (
    EVERYWHERE,
    PACKAGE,
    Checker,
    expect_none,
    findings,
    name_of,
    python_files,
)

PUBLIC = (
    "conf",
    "exceptions",
    "signals",
    "decorators",
    "workflows/__init__",
    "models/",
    "routers",
    "celery/task",
    "celery/calls",
    "celery/result",
    "celery/live_runs",
    "contrib/callbacks/tasks",
    "internal_tasks",
    "notifications/task",
    "ports",
)
"""The modules whose functions users of the package call; the names of a package end with `/`."""


def test_apps_import_only_when_they_are_ready() -> None:
    apps = [file for file in python_files(PACKAGE) if file.name == "apps.py"]
    expect_none(findings(conventions.imports_outside_ready, apps))


def test_no_error_is_swallowed() -> None:
    expect_none(findings(conventions.swallowed_errors, python_files(*EVERYWHERE)))


def test_no_test_sleeps() -> None:
    expect_none(findings(conventions.sleeps, python_files("tests")))


def test_each_wait_has_a_timeout() -> None:
    expect_none(findings(conventions.unbounded_waits, python_files(PACKAGE)))


def test_no_property_test_draws_by_state() -> None:
    expect_none(findings(conventions.draws_from_state, python_files("tests")))


def test_modules_classes_and_public_interfaces_have_docstrings() -> None:
    expect_none(findings(conventions.missing_docstrings, python_files(PACKAGE)))
    public = [
        file
        for file in python_files(PACKAGE)
        if name_of(file).removeprefix(f"{PACKAGE}/").startswith(PUBLIC)
    ]
    assert len(public) > len(PUBLIC)
    expect_none(findings(conventions.missing_docstrings_of_functions, public))


def test_no_test_is_skipped_without_a_reason() -> None:
    expect_none(findings(conventions.silent_skips, python_files("tests")))


@pytest.mark.parametrize(
    ("checker", "breach"),
    [
        (
            conventions.imports_outside_ready,
            "class Apps:\n    def other(self):\n        import json",
        ),
        (conventions.swallowed_errors, "try:\n    act()\nexcept Exception:\n    pass"),
        (conventions.swallowed_errors, "try:\n    act()\nexcept:\n    ..."),
        (
            conventions.swallowed_errors,
            "try:\n    act()\nexcept (ValueError, BaseException):\n    'later'",
        ),
        (conventions.swallowed_errors, "with contextlib.suppress(Exception):\n    act()"),
        (conventions.sleeps, "import time\ntime.sleep(1)"),
        (conventions.sleeps, "from time import sleep"),
        (conventions.unbounded_waits, "self._wake.wait()"),
        (conventions.unbounded_waits, "thread.join(timeout=None)"),
        (
            conventions.draws_from_state,
            "@precondition(lambda self: self.rows)\n@rule()\ndef act(self): ...",
        ),
        (conventions.draws_from_state, "@rule(data=st.data())\ndef act(self, data): ..."),
        (conventions.missing_docstrings, "import json"),
        (conventions.missing_docstrings, "'''Room.'''\nclass Chair:\n    pass"),
        (conventions.missing_docstrings_of_functions, "'''Room.'''\ndef sit():\n    pass"),
        (
            conventions.missing_docstrings_of_functions,
            "'''Room.'''\nclass Chair:\n    '''Seat.'''\n    def sit(self):\n        pass",
        ),
        (conventions.silent_skips, "@pytest.mark.skip()\ndef test_a(): ..."),
        (conventions.silent_skips, "pytest.skip()"),
    ],
)
def test_a_violation_is_found(checker: Checker, breach: str) -> None:
    assert checker(breach)


@pytest.mark.parametrize(
    ("checker", "source"),
    [
        (
            conventions.imports_outside_ready,
            "class Apps:\n    def ready(self):\n        import json",
        ),
        (conventions.swallowed_errors, "try:\n    act()\nexcept ValueError:\n    pass"),
        (
            conventions.swallowed_errors,
            "try:\n    act()\nexcept Exception:\n    logger.exception('lost')",
        ),
        (conventions.sleeps, "until(condition, within=3)"),
        (conventions.unbounded_waits, "wake.wait(1)\nthread.join(timeout=5)\n', '.join(names)"),
        (
            conventions.draws_from_state,
            "@rule(pick=st.integers())\n@applies_if(lambda self: self.rows)\ndef act(self): ...",
        ),
        (conventions.missing_docstrings, "'''Room.'''\ndef _sit():\n    pass"),
        (conventions.silent_skips, "pytest.skip('the broker has no priorities')"),
    ],
)
def test_correct_code_passes(checker: Checker, source: str) -> None:
    assert not checker(source)
