"""`pytest --processor-times N`: the N test modules that used the most processor time.

The time is that of the process and of the children it has waited for, user and system. Unlike a
duration it hardly depends on other work of the machine. Servers are not included; the column of
durations shows where a test waits for them.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest
from _pytest.terminal import TerminalReporter

OPTION = "processor_times"


@dataclass(slots=True)
class Usage:
    """The sums of one module, in seconds."""

    tests: int = 0
    processor: float = 0.0
    elapsed: float = 0.0


class ProcessorTimes:
    """Measure each test with its fixtures. A fixture of a module or of the session counts for the
    test that requested it first.
    """

    def __init__(self, number: int, root: Path) -> None:
        self._number = number
        self._root = root
        self._usage = defaultdict[str, Usage](Usage)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Add what one test used to the sums of its module."""
        processor, began = _processor_seconds(), monotonic()
        try:
            return (yield)
        finally:
            usage = self._usage[item.path.relative_to(self._root).as_posix()]
            usage.tests += 1
            usage.processor += _processor_seconds() - processor
            usage.elapsed += monotonic() - began

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print the table."""
        modules = sorted(self._usage.items(), key=lambda named: -named[1].processor)
        total = sum(usage.processor for _, usage in modules)
        terminalreporter.section(f"processor time: {total:.1f} s in {len(modules)} modules")
        terminalreporter.write_line("processor  duration  tests  module")
        for name, usage in modules[: self._number]:
            terminalreporter.write_line(
                f"{usage.processor:7.1f} s {usage.elapsed:7.1f} s {usage.tests:6}  {name}"
            )


def add_option(parser: pytest.Parser) -> None:
    """Add `--processor-times`."""
    parser.addoption(
        "--processor-times",
        dest=OPTION,
        type=int,
        metavar="N",
        default=0,
        help="print the N modules that used the most processor time",
    )


def use(config: pytest.Config) -> None:
    """Measure if the option was given."""
    if number := config.getoption(OPTION):
        config.pluginmanager.register(ProcessorTimes(number, config.rootpath))


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
